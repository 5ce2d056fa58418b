// The hot path of recording and predicting, on CPython's and c10's C++ interfaces.
//
// A `Node` is one recorded call in the tree of programs. A `Session` follows the tree while the user's Python runs:
// `match` compares an operator call with the expected one and hands out tensors that have a storage without data
// ("handles"). A handle is an ordinary torch.Tensor; reading its data raises until `fill` moves real data in, so every
// alias (views, autograd's saved tensors, p.grad) becomes real at the same moment.
//
// Identity of a value: (storage, offset, size, stride, dtype). Slots number the storages of a path in order of first use.
// Offsets on a storage that exists before the step count from its first use, so batches may be slices of one tensor.

#include <Python.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ThreadLocalPythonObjects.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/library.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

const char* kMessage =
    "this tensor belongs to a training step that Markstep has not run yet, so it holds no data that code outside "
    "PyTorch's dispatcher could read. Call markstep.sync() before reading it, or wrap the code in "
    "`with markstep.pause():`.";

// Before torch 2.12 the flag that makes reading raise can be set but not cleared; naming a private member in an explicit
// instantiation is the way the language leaves to reach it.
bool c10::StorageImpl::*raising_flag();
template <bool c10::StorageImpl::*Flag>
struct Reach {
  friend bool c10::StorageImpl::*raising_flag() { return Flag; }
};
template struct Reach<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

template <class Storage>
void allow_reading(Storage* storage) {
  if constexpr (requires { storage->clear_data_ptr_access_error_msg_(); })
    storage->clear_data_ptr_access_error_msg_();
  else
    storage->*raising_flag() = false;
}

PyObject* g_miss = nullptr;  // returned by match when no expected call fits

// ---------------------------------------------------------------- metadata

struct Meta {
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  bool conj = false, neg = false;

  bool fits(const c10::TensorImpl* t, int64_t shift = 0) const {
    return t->dtype() == c10::scalarTypeToTypeMeta(dtype) && t->sizes().equals(sizes) && t->strides().equals(strides) &&
        t->storage_offset() == offset + shift && t->device() == device && t->is_conj() == conj && t->is_neg() == neg;
  }
};

bool parse_ints(PyObject* tuple, std::vector<int64_t>& out) {
  if (!PyTuple_Check(tuple)) { PyErr_SetString(PyExc_TypeError, "expected a tuple of ints"); return false; }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) out.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)));
  return !PyErr_Occurred();
}

// A Meta in Python is the tuple (shape, stride, offset, dtype, device, conj, neg).
bool parse_meta(PyObject* o, Meta& m) {
  if (!PyTuple_Check(o) || PyTuple_GET_SIZE(o) != 7) { PyErr_SetString(PyExc_TypeError, "expected a Meta"); return false; }
  if (!parse_ints(PyTuple_GET_ITEM(o, 0), m.sizes) || !parse_ints(PyTuple_GET_ITEM(o, 1), m.strides)) return false;
  m.offset = PyLong_AsLongLong(PyTuple_GET_ITEM(o, 2));
  m.dtype = reinterpret_cast<THPDtype*>(PyTuple_GET_ITEM(o, 3))->scalar_type;
  m.device = reinterpret_cast<THPDevice*>(PyTuple_GET_ITEM(o, 4))->device;
  m.conj = PyTuple_GET_ITEM(o, 5) == Py_True;
  m.neg = PyTuple_GET_ITEM(o, 6) == Py_True;
  return !PyErr_Occurred();
}

PyObject* int_tuple(c10::IntArrayRef values) {
  PyObject* t = PyTuple_New((Py_ssize_t)values.size());
  for (size_t i = 0; i < values.size(); i++) PyTuple_SET_ITEM(t, (Py_ssize_t)i, PyLong_FromLongLong(values[i]));
  return t;
}

PyObject* meta_tuple(const c10::TensorImpl* t, int64_t shift = 0) {
  PyObject* dtype = reinterpret_cast<PyObject*>(torch::getTHPDtype(c10::typeMetaToScalarType(t->dtype())));
  Py_INCREF(dtype);
  return Py_BuildValue("(NNLNNOO)", int_tuple(t->sizes()), int_tuple(t->strides()), (long long)(t->storage_offset() - shift), dtype,
                       THPDevice_New(t->device()), t->is_conj() ? Py_True : Py_False, t->is_neg() ? Py_True : Py_False);
}

// Ordinary strided tensors on one device; everything else (sparse, quantised, subclasses that dispatch in Python) stays eager.
bool is_plain(const c10::TensorImpl* t) {
  return t->layout() == c10::Layout::Strided && t->has_storage() && !t->has_symbolic_sizes_strides() &&
      !t->key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::ZeroTensor})) && !t->is_meta() &&
      !t->key_set().has_all(c10::DispatchKeySet(c10::DispatchKey::MkldnnCPU)) &&
      !c10::isQIntType(c10::typeMetaToScalarType(t->dtype()));
}

at::Tensor tensor_on(const c10::intrusive_ptr<c10::StorageImpl>& storage, const Meta& m, int64_t shift = 0) {
  auto key = c10::computeDispatchKey(m.dtype, c10::Layout::Strided, m.device);
  auto t = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(m.dtype));
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(m.sizes, m.strides, m.offset + shift);
  if (m.conj) impl->_set_conj(true);
  if (m.neg) impl->_set_neg(true);
  return t;
}

// ---------------------------------------------------------------- nodes

enum Kind : uint8_t { TENSOR, CONST, SCALAR, LIST, TUPLE, NEW, VIEW, SAME };

struct Item {
  Kind kind;
  int32_t a = 0;              // slot | length | flat tensor position (SAME)
  PyObject* obj = nullptr;    // constant, or the type of a promoted scalar
  std::shared_ptr<Meta> meta;
  int64_t nbytes = 0;
  double limit = 0;           // of a promoted scalar
};

struct Node {
  PyObject_HEAD
  PyObject* func;
  PyObject* call;             // markstep.record.Call
  PyObject* kwnames;          // tuple
  PyObject* info;             // Python-side notes: what ends here, executables
  Py_ssize_t nargs;
  std::vector<Item>* args;
  std::vector<Item>* outs;
  std::vector<int32_t>* writes;
  std::vector<int32_t>* bumps;
  std::vector<Node*>* children;
  Node* parent;               // borrowed: parents own children
  int32_t depth, slots_after;
  bool special;               // not deferred: Python decides what happens
  bool grad;                  // grad mode of the call
  bool absolute;              // an argument is an offset on a storage, not on a tensor
};

extern PyTypeObject NodeType;

PyObject* g_ref = nullptr;     // classes of markstep.record.program
PyObject* g_scalar = nullptr;
PyObject* g_new = nullptr;
PyObject* g_same = nullptr;

bool attr_int(PyObject* o, const char* name, int64_t& out) {
  PyObject* v = PyObject_GetAttrString(o, name);
  if (!v) return false;
  out = PyLong_AsLongLong(v);
  Py_DECREF(v);
  return !PyErr_Occurred();
}

std::shared_ptr<Meta> attr_meta(PyObject* o) {
  PyObject* v = PyObject_GetAttrString(o, "meta");
  if (!v) return nullptr;
  auto m = std::make_shared<Meta>();
  bool ok = parse_meta(v, *m);
  Py_DECREF(v);
  return ok ? m : nullptr;
}

bool flatten(PyObject* o, std::vector<Item>& out, bool result) {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(o));
  Item item{CONST};
  int64_t value = 0;
  if (type == g_ref || type == g_new) {
    item.kind = type == g_new ? NEW : result ? VIEW : TENSOR;
    if (!attr_int(o, "slot", value) || !(item.meta = attr_meta(o))) return false;
    item.a = (int32_t)value;
    if (type == g_new && !attr_int(o, "nbytes", item.nbytes)) return false;
  } else if (type == g_same) {
    item.kind = SAME;
    if (!attr_int(o, "position", value)) return false;
    item.a = (int32_t)value;
  } else if (type == g_scalar) {
    item.kind = SCALAR;
    item.obj = PyObject_GetAttrString(o, "type");
    PyObject* limit = item.obj ? PyObject_GetAttrString(o, "limit") : nullptr;
    if (!limit) return false;
    item.limit = PyFloat_AsDouble(limit);
    Py_DECREF(limit);
  } else if (PyList_CheckExact(o) || PyTuple_CheckExact(o)) {
    item.kind = PyList_CheckExact(o) ? LIST : TUPLE;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(o);
    item.a = (int32_t)n;
    out.push_back(item);
    for (Py_ssize_t i = 0; i < n; i++)
      if (!flatten(PySequence_Fast_GET_ITEM(o, i), out, result)) return false;
    return true;
  } else {
    Py_INCREF(o);
    item.obj = o;
  }
  out.push_back(item);
  return true;
}

void clear_items(std::vector<Item>& items) {
  for (auto& i : items) Py_CLEAR(i.obj);
  items.clear();
}

bool load_ints(PyObject* call, const char* name, std::vector<int32_t>& out) {
  out.clear();
  PyObject* values = PyObject_GetAttrString(call, name);
  for (Py_ssize_t i = 0; values && i < PyTuple_GET_SIZE(values); i++) out.push_back((int32_t)PyLong_AsLong(PyTuple_GET_ITEM(values, i)));
  Py_XDECREF(values);
  return !PyErr_Occurred();
}

// (Re)reads the templates from node->call: args, kwargs, outs, writes.
bool load_call(Node* n) {
  clear_items(*n->args);
  clear_items(*n->outs);
  PyObject* args = PyObject_GetAttrString(n->call, "args");
  PyObject* kwargs = PyObject_GetAttrString(n->call, "kwargs");
  PyObject* outs = PyObject_GetAttrString(n->call, "outs");
  PyObject* grad = PyObject_GetAttrString(n->call, "grad");
  PyObject* absolute = PyObject_GetAttrString(n->call, "absolute");
  bool ok = args && kwargs && outs && grad && absolute && load_ints(n->call, "writes", *n->writes) && load_ints(n->call, "bumps", *n->bumps);
  if (ok) {
    n->grad = grad == Py_True;
    n->absolute = absolute == Py_True;
    n->nargs = PyTuple_GET_SIZE(args);
    for (Py_ssize_t i = 0; ok && i < n->nargs; i++) ok = flatten(PyTuple_GET_ITEM(args, i), *n->args, false);
    PyObject *key, *value;
    Py_ssize_t pos = 0, count = 0;
    Py_XSETREF(n->kwnames, PyTuple_New(PyDict_GET_SIZE(kwargs)));
    while (ok && PyDict_Next(kwargs, &pos, &key, &value)) {
      Py_INCREF(key);
      PyTuple_SET_ITEM(n->kwnames, count++, key);
      ok = flatten(value, *n->args, false);
    }
    ok = ok && flatten(outs, *n->outs, true);
  }
  Py_XDECREF(args); Py_XDECREF(kwargs); Py_XDECREF(outs); Py_XDECREF(grad); Py_XDECREF(absolute);
  return ok && !PyErr_Occurred();
}

// Node(func, call, parent | None, slots_after, special)
PyObject* node_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *func, *call, *parent;
  int slots_after, special;
  if (!PyArg_ParseTuple(args, "OOOip", &func, &call, &parent, &slots_after, &special)) return nullptr;
  auto* n = reinterpret_cast<Node*>(type->tp_alloc(type, 0));
  if (!n) return nullptr;
  n->args = new std::vector<Item>(); n->outs = new std::vector<Item>(); n->writes = new std::vector<int32_t>();
  n->bumps = new std::vector<int32_t>();
  n->children = new std::vector<Node*>();
  Py_INCREF(func); n->func = func;
  Py_INCREF(call); n->call = call;
  n->info = PyDict_New();
  n->slots_after = slots_after; n->special = special;
  if (call != Py_None && !load_call(n)) { Py_DECREF(n); return nullptr; }
  if (parent != Py_None) {
    auto* p = reinterpret_cast<Node*>(parent);
    n->parent = p; n->depth = p->depth + 1;
    Py_INCREF(n);
    p->children->insert(p->children->begin(), n);
  }
  return reinterpret_cast<PyObject*>(n);
}

void node_dealloc(PyObject* self) {
  auto* n = reinterpret_cast<Node*>(self);
  std::vector<Node*> stack;  // iterative: a path has thousands of nodes, the C stack has not
  stack.swap(*n->children);
  while (!stack.empty()) {
    Node* c = stack.back();
    stack.pop_back();
    c->parent = nullptr;
    if (Py_REFCNT(c) == 1) {
      stack.insert(stack.end(), c->children->begin(), c->children->end());
      c->children->clear();
    }
    Py_DECREF(c);
  }
  clear_items(*n->args); clear_items(*n->outs);
  delete n->args; delete n->outs; delete n->writes; delete n->bumps; delete n->children;
  Py_CLEAR(n->func); Py_CLEAR(n->call); Py_CLEAR(n->kwnames); Py_CLEAR(n->info);
  Py_TYPE(self)->tp_free(self);
}

PyObject* node_children(PyObject* self, void*) {
  auto* n = reinterpret_cast<Node*>(self);
  PyObject* list = PyList_New((Py_ssize_t)n->children->size());
  for (size_t i = 0; i < n->children->size(); i++) {
    Py_INCREF((*n->children)[i]);
    PyList_SET_ITEM(list, (Py_ssize_t)i, reinterpret_cast<PyObject*>((*n->children)[i]));
  }
  return list;
}

PyObject* node_get(PyObject* o) { Py_INCREF(o); return o; }
PyObject* node_call(PyObject* s, void*) { return node_get(reinterpret_cast<Node*>(s)->call); }
PyObject* node_func(PyObject* s, void*) { return node_get(reinterpret_cast<Node*>(s)->func); }
PyObject* node_info(PyObject* s, void*) { return node_get(reinterpret_cast<Node*>(s)->info); }
PyObject* node_depth(PyObject* s, void*) { return PyLong_FromLong(reinterpret_cast<Node*>(s)->depth); }
PyObject* node_special(PyObject* s, void*) { return PyBool_FromLong(reinterpret_cast<Node*>(s)->special); }
PyObject* node_slots(PyObject* s, void*) { return PyLong_FromLong(reinterpret_cast<Node*>(s)->slots_after); }
PyObject* node_parent(PyObject* s, void*) {
  auto* p = reinterpret_cast<Node*>(s)->parent;
  return node_get(p ? reinterpret_cast<PyObject*>(p) : Py_None);
}

// replace(call): new templates for the same place in the tree (a constant became an input).
PyObject* node_replace(PyObject* self, PyObject* call) {
  auto* n = reinterpret_cast<Node*>(self);
  Py_INCREF(call);
  Py_XSETREF(n->call, call);
  if (!load_call(n)) return nullptr;
  Py_RETURN_NONE;
}

// drop(child): forgets a branch.
PyObject* node_drop(PyObject* self, PyObject* child) {
  auto* n = reinterpret_cast<Node*>(self);
  for (size_t i = 0; i < n->children->size(); i++)
    if (reinterpret_cast<PyObject*>((*n->children)[i]) == child) {
      (*n->children)[i]->parent = nullptr;
      n->children->erase(n->children->begin() + (long)i);
      Py_DECREF(child);
      Py_RETURN_TRUE;
    }
  Py_RETURN_FALSE;
}

PyMethodDef node_methods[] = {{"replace", node_replace, METH_O, nullptr}, {"drop", node_drop, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};
PyGetSetDef node_getset[] = {
    {"call", node_call, nullptr, nullptr, nullptr}, {"func", node_func, nullptr, nullptr, nullptr},
    {"info", node_info, nullptr, nullptr, nullptr}, {"children", node_children, nullptr, nullptr, nullptr},
    {"depth", node_depth, nullptr, nullptr, nullptr}, {"special", node_special, nullptr, nullptr, nullptr},
    {"slots_after", node_slots, nullptr, nullptr, nullptr}, {"parent", node_parent, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

// ---------------------------------------------------------------- sessions

// The storage of a handle is held weakly until it has data: autograd adds gradients up in place only if nobody else holds
// their storage, and a predicted step must take the same way as a recorded one.
struct Slot {
  c10::weak_intrusive_ptr<c10::StorageImpl> weak{c10::intrusive_ptr<c10::StorageImpl>()};  // keeps the address from being reused
  c10::intrusive_ptr<c10::StorageImpl> strong;            // predicting: data that pending calls read
  c10::StorageImpl* key = nullptr;
  bool deferred = false;                                  // a handle: no data yet
  bool created = false;                                   // allocated by a call of the path
  int64_t nbytes = 0;                                     // of a created slot
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  bool flagged = false;                                   // real data, but a pending call writes to it
  int64_t shift = 0;                                      // offset of its first use, less that in the program

  c10::intrusive_ptr<c10::StorageImpl> storage() const { return strong ? strong : weak.lock(); }
};

struct Step { Node* node; uint32_t scalar_base; };

struct State {
  std::vector<Slot> slots;
  std::unordered_map<c10::StorageImpl*, int32_t> index;
  std::vector<Step> path;
  std::vector<PyObject*> scalars;
  Node* root = nullptr;
  Node* current = nullptr;
  bool strong = false;

  void truncate_slots(size_t n) {
    while (slots.size() > n) {
      auto& s = slots.back();
      if (s.flagged && s.strong) allow_reading(s.strong.get());
      auto it = index.find(s.key);
      if (it != index.end() && it->second == (int32_t)slots.size() - 1) index.erase(it);
      slots.pop_back();
    }
  }
  void truncate_scalars(size_t n) {
    while (scalars.size() > n) { Py_DECREF(scalars.back()); scalars.pop_back(); }
  }
  void reset() {
    truncate_slots(0);
    truncate_scalars(0);
    index.clear();
    path.clear();
    current = root;
  }
};

struct Session {
  PyObject_HEAD
  State* s;
};

Session* as_session(PyObject* o) { return reinterpret_cast<Session*>(o); }

const at::Tensor* unpack(PyObject* o) {
  if (!THPVariable_CheckExact(o) && !THPVariable_Check(o)) return nullptr;
  const at::Tensor& t = THPVariable_Unpack(o);
  return t.defined() ? &t : nullptr;
}

int32_t bind(State& st, const at::Tensor& t) {
  const auto& storage = t.storage();
  auto* key = storage.unsafeGetStorageImpl();
  auto found = st.index.find(key);
  if (found != st.index.end()) return found->second;
  Slot slot;
  slot.key = key;
  auto ptr = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(key);
  slot.weak = c10::weak_intrusive_ptr<c10::StorageImpl>(ptr);
  if (st.strong) slot.strong = ptr;
  auto id = (int32_t)st.slots.size();
  st.slots.push_back(std::move(slot));
  st.index.emplace(key, id);
  return id;
}

bool same_constant(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyFloat_CheckExact(a)) {
    double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  if (PyComplex_CheckExact(a)) {
    Py_complex x = PyComplex_AsCComplex(a), y = PyComplex_AsCComplex(b);
    return std::memcmp(&x, &y, sizeof x) == 0;
  }
  int eq = PyObject_RichCompareBool(a, b, Py_EQ);
  if (eq < 0) PyErr_Clear();
  return eq == 1;
}

// Is |value| at most `limit`? False for NaN.
bool within(PyObject* value, double limit) {
  double v = PyFloat_AsDouble(value);
  if (PyErr_Occurred()) { PyErr_Clear(); return false; }
  return std::abs(v) <= limit;
}

// Compares one argument tree with the template; binds input slots and scalars on the way.
bool match_value(State& st, const std::vector<Item>& items, size_t& at, PyObject* value) {
  const Item& item = items[at++];
  switch (item.kind) {
    case TENSOR: {
      const at::Tensor* t = unpack(value);
      if (!t || !is_plain(t->unsafeGetTensorImpl())) return false;
      auto* key = t->storage().unsafeGetStorageImpl();
      bool bound = (size_t)item.a < st.slots.size();
      int64_t shift = bound ? st.slots[(size_t)item.a].shift : t->storage_offset() - item.meta->offset;
      if (!item.meta->fits(t->unsafeGetTensorImpl(), shift)) return false;
      if (bound) return st.slots[(size_t)item.a].key == key;
      if (st.index.count(key) || bind(st, *t) != item.a) return false;
      st.slots.back().shift = shift;
      return true;
    }
    case SCALAR:
      if (reinterpret_cast<PyObject*>(Py_TYPE(value)) != item.obj || !within(value, item.limit)) return false;
      Py_INCREF(value);
      st.scalars.push_back(value);
      return true;
    case LIST:
    case TUPLE: {
      if (item.kind == LIST ? !PyList_CheckExact(value) : !PyTuple_CheckExact(value)) return false;
      Py_ssize_t n = PySequence_Fast_GET_SIZE(value);
      if (n != item.a) return false;
      for (Py_ssize_t i = 0; i < n; i++)
        if (!match_value(st, items, at, PySequence_Fast_GET_ITEM(value, i))) return false;
      return true;
    }
    default:
      return same_constant(item.obj, value);
  }
}

bool match_call(State& st, Node* n, PyObject* args, PyObject* kwargs) {
  if (PyTuple_GET_SIZE(args) != n->nargs) return false;
  Py_ssize_t nkw = kwargs == Py_None ? 0 : PyDict_GET_SIZE(kwargs);
  if (nkw != PyTuple_GET_SIZE(n->kwnames)) return false;
  size_t slots = st.slots.size(), scalars = st.scalars.size(), at = 0;
  bool ok = true;
  for (Py_ssize_t i = 0; ok && i < n->nargs; i++) ok = match_value(st, *n->args, at, PyTuple_GET_ITEM(args, i));
  for (Py_ssize_t i = 0; ok && i < nkw; i++) {
    PyObject* v = PyDict_GetItemWithError(kwargs, PyTuple_GET_ITEM(n->kwnames, i));
    ok = v && match_value(st, *n->args, at, v);
  }
  if (n->absolute)
    for (auto& item : *n->args) ok = ok && (item.kind != TENSOR || !st.slots[(size_t)item.a].shift);
  if (!ok) {
    st.truncate_slots(slots);
    st.truncate_scalars(scalars);
  } else {
    st.path.push_back({n, (uint32_t)scalars});
    st.current = n;
  }
  return ok;
}

Node* follow(State& st, PyObject* func, PyObject* args, PyObject* kwargs, bool specials) {
  if (c10::get_default_dtype_as_scalartype() != c10::ScalarType::Float) return nullptr;  // programs do not hold it
  auto& children = *st.current->children;
  bool grad = c10::GradMode::is_enabled();
  for (size_t i = 0; i < children.size(); i++) {
    Node* c = children[i];
    if (c->func != func || c->grad != grad || (c->special && !specials)) continue;
    if (match_call(st, c, args, kwargs)) return c;
  }
  return nullptr;
}

// The value behind tensor position `position` of a call's arguments.
PyObject* tensor_argument(PyObject* args, PyObject* kwargs, PyObject* kwnames, int32_t position) {
  int32_t seen = 0;
  std::vector<PyObject*> stack;
  auto visit = [&](PyObject* o, auto&& self) -> PyObject* {
    if (PyList_CheckExact(o) || PyTuple_CheckExact(o)) {
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); i++)
        if (PyObject* r = self(PySequence_Fast_GET_ITEM(o, i), self)) return r;
      return nullptr;
    }
    if (unpack(o) && seen++ == position) return o;
    return nullptr;
  };
  if (PyObject* r = visit(args, visit)) return r;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kwnames); i++)
    if (PyObject* r = visit(PyDict_GetItem(kwargs, PyTuple_GET_ITEM(kwnames, i)), visit)) return r;
  return nullptr;
}

// Gives a created slot a storage without data.
void defer(Slot& slot) {
  slot.strong = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(slot.nbytes), c10::DataPtr(nullptr, slot.device),
      c10::GetAllocator(slot.device.type()), true);
  if (slot.nbytes) slot.strong->release_data_and_set_meta_custom_data_ptr_error_msg_(std::string(kMessage));
  slot.deferred = slot.created = true;
}

PyObject* make_output(State& st, Node* n, size_t& at, PyObject* args, PyObject* kwargs) {
  const Item& item = (*n->outs)[at++];
  switch (item.kind) {
    case NEW: {
      Slot slot;
      slot.nbytes = item.nbytes;
      slot.device = item.meta->device;
      defer(slot);
      auto storage = std::move(slot.strong);
      slot.key = storage.get();
      slot.weak = c10::weak_intrusive_ptr<c10::StorageImpl>(storage);
      st.index.emplace(slot.key, (int32_t)st.slots.size());
      st.slots.push_back(std::move(slot));
      return THPVariable_Wrap(tensor_on(storage, *item.meta));
    }
    case VIEW:
      return THPVariable_Wrap(tensor_on(st.slots[(size_t)item.a].storage(), *item.meta, st.slots[(size_t)item.a].shift));
    case SAME: {
      PyObject* o = tensor_argument(args, kwargs, n->kwnames, item.a);
      Py_XINCREF(o);
      return o;
    }
    case LIST:
    case TUPLE: {
      PyObject* seq = item.kind == LIST ? PyList_New(item.a) : PyTuple_New(item.a);
      for (int32_t i = 0; i < item.a; i++) {
        PyObject* v = make_output(st, n, at, args, kwargs);
        if (!v) { Py_DECREF(seq); return nullptr; }
        if (item.kind == LIST) PyList_SET_ITEM(seq, i, v); else PyTuple_SET_ITEM(seq, i, v);
      }
      return seq;
    }
    default:
      Py_INCREF(item.obj);
      return item.obj;
  }
}

// Real data behind a slot that a deferred call writes: reading it outside the dispatcher must raise, not be stale.
void flag(Slot& slot) {
  if (slot.deferred || slot.flagged || !slot.strong || !slot.strong->nbytes()) return;
  slot.flagged = true;
  slot.strong->release_data_and_set_meta_custom_data_ptr_error_msg_(std::string(kMessage));
}

// match(func, args, kwargs): the predicted result, or MISS.
PyObject* session_match(PyObject* self, PyObject* const* a, Py_ssize_t) {
  HANDLE_TH_ERRORS
  State& st = *as_session(self)->s;
  Node* n = follow(st, a[0], a[1], a[2], false);
  if (!n) { Py_INCREF(g_miss); return g_miss; }
  size_t at = 0;
  PyObject* out = make_output(st, n, at, a[1], a[2]);
  if (out)
    for (int32_t w : *n->writes) flag(st.slots[(size_t)w]);
  for (int32_t b : *n->bumps) unpack(tensor_argument(a[1], a[2], n->kwnames, b))->unsafeGetTensorImpl()->bump_version();
  return out;
  END_HANDLE_TH_ERRORS
}

// follow(func, args, kwargs): the node that fits (special ones included), or None; binds its inputs, advances.
PyObject* session_follow(PyObject* self, PyObject* const* a, Py_ssize_t) {
  HANDLE_TH_ERRORS
  Node* n = follow(*as_session(self)->s, a[0], a[1], a[2], true);
  return node_get(n ? reinterpret_cast<PyObject*>(n) : Py_None);
  END_HANDLE_TH_ERRORS
}

bool check_output(State& st, Node* n, size_t& at, PyObject* value, PyObject* args, PyObject* kwargs) {
  const Item& item = (*n->outs)[at++];
  switch (item.kind) {
    case NEW:
    case VIEW: {
      const at::Tensor* t = unpack(value);
      int64_t shift = item.kind == VIEW ? st.slots[(size_t)item.a].shift : 0;
      if (!t || !is_plain(t->unsafeGetTensorImpl()) || !item.meta->fits(t->unsafeGetTensorImpl(), shift)) return false;
      auto found = st.index.find(t->storage().unsafeGetStorageImpl());
      if (item.kind == VIEW) return found != st.index.end() && found->second == item.a;
      return found == st.index.end() && (int64_t)t->storage().nbytes() == item.nbytes && bind(st, *t) == item.a;
    }
    case SAME:
      return value == tensor_argument(args, kwargs, n->kwnames, item.a);
    case LIST:
    case TUPLE: {
      if (item.kind == LIST ? !PyList_CheckExact(value) : !PyTuple_CheckExact(value)) return false;
      if (PySequence_Fast_GET_SIZE(value) != item.a) return false;
      for (int32_t i = 0; i < item.a; i++)
        if (!check_output(st, n, at, PySequence_Fast_GET_ITEM(value, i), args, kwargs)) return false;
      return true;
    }
    default:
      return same_constant(item.obj, value);
  }
}

// confirm(out, args, kwargs): does an eagerly computed result look as recorded at the current node? Binds new slots.
PyObject* session_confirm(PyObject* self, PyObject* const* a, Py_ssize_t) {
  HANDLE_TH_ERRORS
  State& st = *as_session(self)->s;
  size_t at = 0, slots = st.slots.size();
  bool ok = check_output(st, st.current, at, a[0], a[1], a[2]);
  if (!ok) st.truncate_slots(slots);
  return PyBool_FromLong(ok);
  END_HANDLE_TH_ERRORS
}

// retreat(): takes the last call of the path back, with the slots it bound.
PyObject* session_retreat(PyObject* self, PyObject*) {
  State& st = *as_session(self)->s;
  Node* n = st.current;
  st.truncate_scalars(st.path.back().scalar_base);
  st.path.pop_back();
  st.current = n->parent ? n->parent : st.root;
  st.truncate_slots((size_t)st.current->slots_after);
  Py_RETURN_NONE;
}

// trim(): forgets slots that were bound for a call that was not recorded after all.
PyObject* session_trim(PyObject* self, PyObject*) {
  State& st = *as_session(self)->s;
  st.truncate_slots((size_t)st.current->slots_after);
  Py_RETURN_NONE;
}

// enter(node): appends a freshly recorded node (its slots are bound already) and its promoted scalars.
PyObject* session_enter(PyObject* self, PyObject* node) {
  State& st = *as_session(self)->s;
  st.path.push_back({reinterpret_cast<Node*>(node), (uint32_t)st.scalars.size()});
  st.current = reinterpret_cast<Node*>(node);
  Py_RETURN_NONE;
}

// bind(tensor): the slot of the tensor's storage, a new one if unknown. lookup(tensor): the slot, or -1.
PyObject* session_bind(PyObject* self, PyObject* tensor) {
  HANDLE_TH_ERRORS
  return PyLong_FromLong(bind(*as_session(self)->s, *unpack(tensor)));
  END_HANDLE_TH_ERRORS
}

PyObject* session_lookup(PyObject* self, PyObject* tensor) {
  State& st = *as_session(self)->s;
  const at::Tensor* t = unpack(tensor);
  if (!t || !t->unsafeGetTensorImpl()->has_storage()) return PyLong_FromLong(-1);
  auto found = st.index.find(t->storage().unsafeGetStorageImpl());
  return PyLong_FromLong(found == st.index.end() ? -1 : found->second);
}

// shift(tensor): by how much its offset differs from that in the program. meta(tensor): its Meta in the program.
int64_t shift_of(const State& st, const at::Tensor& t) {
  auto found = st.index.find(t.storage().unsafeGetStorageImpl());
  return found == st.index.end() ? 0 : st.slots[(size_t)found->second].shift;
}

PyObject* session_shift(PyObject* self, PyObject* tensor) {
  return PyLong_FromLongLong(shift_of(*as_session(self)->s, *unpack(tensor)));
}

PyObject* session_meta(PyObject* self, PyObject* tensor) {
  HANDLE_TH_ERRORS
  const at::Tensor& t = *unpack(tensor);
  return meta_tuple(t.unsafeGetTensorImpl(), shift_of(*as_session(self)->s, t));
  END_HANDLE_TH_ERRORS
}

PyObject* build_value(State& st, const std::vector<Item>& items, size_t& at, uint32_t& scalar) {
  const Item& item = items[at++];
  switch (item.kind) {
    case TENSOR:
      if (auto storage = st.slots[(size_t)item.a].storage()) return THPVariable_Wrap(tensor_on(storage, *item.meta, st.slots[(size_t)item.a].shift));
      PyErr_Format(PyExc_AssertionError, "slot %d was released before its last use", item.a);
      return nullptr;
    case SCALAR:
      return node_get(st.scalars[scalar++]);
    case LIST:
    case TUPLE: {
      PyObject* seq = item.kind == LIST ? PyList_New(item.a) : PyTuple_New(item.a);
      for (int32_t i = 0; i < item.a; i++) {
        PyObject* v = build_value(st, items, at, scalar);
        if (!v) { Py_DECREF(seq); return nullptr; }
        if (item.kind == LIST) PyList_SET_ITEM(seq, i, v); else PyTuple_SET_ITEM(seq, i, v);
      }
      return seq;
    }
    default:
      return node_get(item.obj);
  }
}

// arguments(i): (args, kwargs) of call i of the path, as real tensors.
PyObject* session_arguments(PyObject* self, PyObject* index) {
  HANDLE_TH_ERRORS
  State& st = *as_session(self)->s;
  Step step = st.path[(size_t)PyLong_AsSsize_t(index)];
  size_t at = 0;
  uint32_t scalar = step.scalar_base;
  PyObject* args = PyTuple_New(step.node->nargs);
  PyObject* kwargs = PyDict_New();
  for (Py_ssize_t i = 0; i < step.node->nargs; i++) {
    PyObject* v = build_value(st, *step.node->args, at, scalar);
    if (!v) { Py_DECREF(args); Py_DECREF(kwargs); return nullptr; }
    PyTuple_SET_ITEM(args, i, v);
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(step.node->kwnames); i++) {
    PyObject* v = build_value(st, *step.node->args, at, scalar);
    if (!v) { Py_DECREF(args); Py_DECREF(kwargs); return nullptr; }
    PyDict_SetItem(kwargs, PyTuple_GET_ITEM(step.node->kwnames, i), v);
    Py_DECREF(v);
  }
  return Py_BuildValue("(NN)", args, kwargs);
  END_HANDLE_TH_ERRORS
}

// A storage's bytes as a tensor.
at::Tensor bytes_of(const at::Tensor& t) {
  auto* storage = t.storage().unsafeGetStorageImpl();
  Meta m;
  m.sizes = {(int64_t)storage->nbytes()}; m.strides = {1}; m.dtype = c10::ScalarType::Byte; m.device = t.device();
  return tensor_on(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage), m);
}

// Moves the data of `t` into the handles of slot `id`; copies when others than `sharers` results of one call own it too.
// False: the results share memory in another way than promised.
bool fill(State& st, int32_t id, const at::Tensor& given, const Meta& meta, int32_t sharers) {
  Slot& slot = st.slots[(size_t)id];
  if (!slot.deferred) return true;
  if (!slot.strong) slot.strong = slot.weak.lock();
  if (!slot.strong) defer(slot);  // nobody outside looks at it any more, but pending calls may
  at::Tensor t = given;
  auto nbytes = (int64_t)slot.strong->nbytes();
  bool fits = meta.fits(t.unsafeGetTensorImpl()) && (int64_t)t.storage().nbytes() >= nbytes;
  if (sharers > 1 && !fits) return false;
  if (!fits || t.storage().use_count() != sharers || !t.storage().allocator()) {
    t = at::empty({nbytes}, given.options().dtype(at::kByte));
    at::Tensor target = tensor_on(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(t.storage().unsafeGetStorageImpl()), meta);
    if (fits) t.copy_(bytes_of(given).narrow(0, 0, nbytes)); else target.copy_(given);
  }
  auto *from = t.storage().unsafeGetStorageImpl(), *to = slot.strong.get();
  allow_reading(to);
  to->set_allocator(from->allocator());
  to->set_data_ptr_noswap(std::move(from->_mutable_data_ptr_no_checks()));
  slot.deferred = false;
  return true;
}

bool store_output(State& st, Node* n, size_t& at, PyObject* value) {
  const Item& item = (*n->outs)[at++];
  switch (item.kind) {
    case NEW: {
      const at::Tensor* t = unpack(value);
      if (!t || !t->sizes().equals(item.meta->sizes) || t->dtype() != c10::scalarTypeToTypeMeta(item.meta->dtype)) return false;
      auto sharers = 1 + std::count_if(n->outs->begin(), n->outs->end(), [&](const Item& o) { return o.kind == VIEW && o.a == item.a; });
      return fill(st, item.a, *t, *item.meta, (int32_t)sharers);
    }
    case LIST:
    case TUPLE:
      if (PySequence_Size(value) != item.a) return false;
      for (int32_t i = 0; i < item.a; i++) {
        PyObject* v = PySequence_GetItem(value, i);
        bool ok = store_output(st, n, at, v);
        Py_XDECREF(v);
        if (!ok) return false;
      }
      return true;
    default:
      return true;
  }
}

// store(i, out): the real result of call i of the path fills its handles. False: it is not what was promised.
PyObject* session_store(PyObject* self, PyObject* const* a, Py_ssize_t) {
  HANDLE_TH_ERRORS
  State& st = *as_session(self)->s;
  Node* n = st.path[(size_t)PyLong_AsSsize_t(a[0])].node;
  size_t at = 0;
  return PyBool_FromLong(store_output(st, n, at, a[1]));
  END_HANDLE_TH_ERRORS
}

// fill(slot, tensor, meta): as store, for one slot; meta is that of the tensor that created the storage.
PyObject* session_fill(PyObject* self, PyObject* const* a, Py_ssize_t) {
  HANDLE_TH_ERRORS
  Meta m;
  if (!parse_meta(a[2], m)) return nullptr;
  const at::Tensor* t = unpack(a[1]);
  if (!t || !t->sizes().equals(m.sizes) || t->dtype() != c10::scalarTypeToTypeMeta(m.dtype)) Py_RETURN_FALSE;
  return PyBool_FromLong(fill(*as_session(self)->s, (int32_t)PyLong_AsLong(a[0]), *t, m, 1));
  END_HANDLE_TH_ERRORS
}

// tensor(slot, meta): a tensor on the slot's storage.
PyObject* session_tensor(PyObject* self, PyObject* const* a, Py_ssize_t) {
  HANDLE_TH_ERRORS
  State& st = *as_session(self)->s;
  Meta m;
  if (!parse_meta(a[1], m)) return nullptr;
  auto& slot = st.slots[(size_t)PyLong_AsSsize_t(a[0])];
  auto storage = slot.storage();
  if (!storage) { PyErr_SetString(PyExc_AssertionError, "slot was released"); return nullptr; }
  return THPVariable_Wrap(tensor_on(storage, m, slot.shift));
  END_HANDLE_TH_ERRORS
}

// begin_run(): pending writes are about to happen; their storages can be read again.
PyObject* session_begin_run(PyObject* self, PyObject*) {
  for (auto& slot : as_session(self)->s->slots)
    if (slot.flagged) {
      slot.flagged = false;
      if (slot.strong) allow_reading(slot.strong.get());
    }
  Py_RETURN_NONE;
}

// unflag(slot): its pending writes are about to happen.
PyObject* session_unflag(PyObject* self, PyObject* id) {
  Slot& slot = as_session(self)->s->slots[(size_t)PyLong_AsSsize_t(id)];
  if (slot.flagged && slot.strong) allow_reading(slot.strong.get());
  slot.flagged = false;
  Py_RETURN_NONE;
}

// flag(slot): a pending call writes to it.
PyObject* session_flag(PyObject* self, PyObject* id) {
  flag(as_session(self)->s->slots[(size_t)PyLong_AsSsize_t(id)]);
  Py_RETURN_NONE;
}

// release(slot): the interpreter has made its last use of it.
PyObject* session_release(PyObject* self, PyObject* id) {
  Slot& slot = as_session(self)->s->slots[(size_t)PyLong_AsSsize_t(id)];
  slot.strong.reset();
  Py_RETURN_NONE;
}

// live(): slots without data that somebody outside still holds.
PyObject* session_live(PyObject* self, PyObject*) {
  PyObject* list = PyList_New(0);
  auto& slots = as_session(self)->s->slots;
  for (size_t i = 0; i < slots.size(); i++) {
    auto& slot = slots[i];
    if (!slot.deferred || (slot.strong ? slot.strong.use_count() < 2 : slot.weak.use_count() == 0)) continue;
    PyObject* v = PyLong_FromSize_t(i);
    PyList_Append(list, v);
    Py_DECREF(v);
  }
  return list;
}

// alive(): recording: slots whose storage still exists.
PyObject* session_alive(PyObject* self, PyObject*) {
  PyObject* list = PyList_New(0);
  auto& slots = as_session(self)->s->slots;
  for (size_t i = 0; i < slots.size(); i++) {
    if (slots[i].strong ? slots[i].strong.use_count() < 2 : slots[i].weak.use_count() == 0) continue;
    PyObject* v = PyLong_FromSize_t(i);
    PyList_Append(list, v);
    Py_DECREF(v);
  }
  return list;
}

// overlaps(): do two different storages with data share memory (arrays from numpy, say)?
PyObject* session_overlaps(PyObject* self, PyObject*) {
  std::vector<std::pair<uintptr_t, uintptr_t>> spans;
  for (auto& slot : as_session(self)->s->slots) {
    if (slot.deferred || !slot.strong || !slot.strong->nbytes()) continue;
    auto begin = reinterpret_cast<uintptr_t>(slot.strong->_mutable_data_ptr_no_checks().get());
    spans.emplace_back(begin, begin + slot.strong->nbytes());
  }
  std::sort(spans.begin(), spans.end());
  for (size_t i = 1; i < spans.size(); i++)
    if (spans[i].first < spans[i - 1].second) Py_RETURN_TRUE;
  Py_RETURN_FALSE;
}

// freeze(): a session that remembers this path, its inputs and its numbers, but no results.
PyObject* session_freeze(PyObject* self, PyObject*) {
  State& st = *as_session(self)->s;
  PyObject* copy = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(Py_TYPE(self)));
  State& to = *as_session(copy)->s;
  Py_INCREF(st.root);
  to.root = st.root;
  to.current = st.current;
  to.path = st.path;
  to.strong = true;
  for (PyObject* v : st.scalars) to.scalars.push_back(node_get(v));
  for (auto& slot : st.slots) {
    Slot kept;
    kept.created = slot.created; kept.nbytes = slot.nbytes; kept.device = slot.device; kept.shift = slot.shift;
    if (!slot.created) { kept.strong = slot.strong; kept.key = slot.key; }
    to.slots.push_back(std::move(kept));
  }
  return copy;
}

// thaw(frozen, {slot: tensor}): as after predicting the frozen path, with other tensors for some inputs.
PyObject* session_thaw(PyObject* self, PyObject* const* a, Py_ssize_t) {
  HANDLE_TH_ERRORS
  State& st = *as_session(self)->s;
  State& from = *as_session(a[0])->s;
  st.reset();
  Py_INCREF(from.root);
  Py_XSETREF(st.root, from.root);
  st.current = from.current;
  st.path = from.path;
  st.strong = true;
  for (PyObject* v : from.scalars) st.scalars.push_back(node_get(v));
  for (size_t i = 0; i < from.slots.size(); i++) {
    Slot slot;
    slot.nbytes = from.slots[i].nbytes;
    slot.device = from.slots[i].device;
    slot.shift = from.slots[i].shift;
    if (from.slots[i].created) defer(slot);
    else { slot.strong = from.slots[i].strong; slot.key = from.slots[i].key; }
    st.slots.push_back(std::move(slot));
  }
  PyObject *key, *value;
  Py_ssize_t pos = 0;
  while (PyDict_Next(a[1], &pos, &key, &value)) {
    Slot& slot = st.slots[(size_t)PyLong_AsSsize_t(key)];
    slot.key = unpack(value)->storage().unsafeGetStorageImpl();
    slot.strong = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(slot.key);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// abandoned(): does nobody else hold one of a frozen session's inputs any more? inputs(): their slots.
PyObject* session_abandoned(PyObject* self, PyObject*) {
  for (auto& slot : as_session(self)->s->slots)
    if (!slot.created && slot.strong && slot.strong.use_count() == 1) Py_RETURN_TRUE;
  Py_RETURN_FALSE;
}

// keys(): for every slot: None if the path creates it, else a number that identifies its storage.
PyObject* session_keys(PyObject* self, PyObject*) {
  auto& slots = as_session(self)->s->slots;
  PyObject* list = PyList_New((Py_ssize_t)slots.size());
  for (size_t i = 0; i < slots.size(); i++)
    PyList_SET_ITEM(list, (Py_ssize_t)i, slots[i].created ? node_get(Py_None) : PyLong_FromVoidPtr(slots[i].key));
  return list;
}

// forget_input(slot): a frozen session need not keep an input that is given anew each time.
PyObject* session_forget_input(PyObject* self, PyObject* id) {
  as_session(self)->s->slots[(size_t)PyLong_AsSsize_t(id)].strong.reset();
  Py_RETURN_NONE;
}

// stale(things, reads): is memory behind one of these slots or tensors also that of another slot, which a pending call
// writes to (or, with `reads`, uses at all)?
PyObject* session_stale(PyObject* self, PyObject* const* a, Py_ssize_t) {
  State& st = *as_session(self)->s;
  bool reads = a[1] == Py_True;
  auto span = [](c10::StorageImpl* storage) {
    auto begin = storage ? reinterpret_cast<uintptr_t>(storage->_mutable_data_ptr_no_checks().get()) : 0;
    return std::make_pair(begin, begin ? begin + storage->nbytes() : 0);
  };
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(a[0]); i++) {
    PyObject* thing = PyList_GET_ITEM(a[0], i);
    const at::Tensor* t = unpack(thing);
    if (t && !t->unsafeGetTensorImpl()->has_storage()) continue;
    auto* read = t ? t->storage().unsafeGetStorageImpl() : st.slots[(size_t)PyLong_AsSsize_t(thing)].strong.get();
    auto [begin, end] = span(read);
    for (auto& slot : st.slots) {
      if (!(slot.flagged || (reads && !slot.deferred)) || slot.strong.get() == read) continue;
      auto [from, to] = span(slot.strong.get());
      if (from < end && begin < to) Py_RETURN_TRUE;
    }
  }
  Py_RETURN_FALSE;
}

// weaken(): from predicting to recording: only identities are kept.
PyObject* session_weaken(PyObject* self, PyObject*) {
  State& st = *as_session(self)->s;
  st.strong = false;
  for (auto& slot : st.slots) {
    slot.strong.reset();
    slot.deferred = false;
  }
  Py_RETURN_NONE;
}

// reset(root, strong): starts a new path.
PyObject* session_reset(PyObject* self, PyObject* const* a, Py_ssize_t) {
  State& st = *as_session(self)->s;
  Py_INCREF(a[0]);
  Node* old = st.root;
  st.root = reinterpret_cast<Node*>(a[0]);
  st.reset();
  st.strong = a[1] == Py_True;
  Py_XDECREF(old);
  Py_RETURN_NONE;
}

PyObject* session_current(PyObject* self, void*) { return node_get(reinterpret_cast<PyObject*>(as_session(self)->s->current)); }
PyObject* session_length(PyObject* self, void*) { return PyLong_FromSize_t(as_session(self)->s->path.size()); }
PyObject* session_slot_count(PyObject* self, void*) { return PyLong_FromSize_t(as_session(self)->s->slots.size()); }
PyObject* session_path(PyObject* self, void*) {
  auto& path = as_session(self)->s->path;
  PyObject* list = PyList_New((Py_ssize_t)path.size());
  for (size_t i = 0; i < path.size(); i++) PyList_SET_ITEM(list, (Py_ssize_t)i, node_get(reinterpret_cast<PyObject*>(path[i].node)));
  return list;
}
PyObject* session_scalars(PyObject* self, void*) {
  auto& values = as_session(self)->s->scalars;
  PyObject* list = PyList_New((Py_ssize_t)values.size());
  for (size_t i = 0; i < values.size(); i++) PyList_SET_ITEM(list, (Py_ssize_t)i, node_get(values[i]));
  return list;
}

PyObject* session_new(PyTypeObject* type, PyObject*, PyObject*) {
  auto* self = reinterpret_cast<Session*>(type->tp_alloc(type, 0));
  if (self) self->s = new State();
  return reinterpret_cast<PyObject*>(self);
}

void session_dealloc(PyObject* self) {
  State* st = as_session(self)->s;
  st->reset();
  Py_XDECREF(st->root);
  delete st;
  Py_TYPE(self)->tp_free(self);
}

#define FAST(f) reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(f)), METH_FASTCALL, nullptr
PyMethodDef session_methods[] = {
    {"match", FAST(session_match)}, {"follow", FAST(session_follow)}, {"confirm", FAST(session_confirm)},
    {"store", FAST(session_store)}, {"fill", FAST(session_fill)}, {"tensor", FAST(session_tensor)}, {"reset", FAST(session_reset)},
    {"retreat", session_retreat, METH_NOARGS, nullptr}, {"trim", session_trim, METH_NOARGS, nullptr}, {"enter", session_enter, METH_O, nullptr},
    {"bind", session_bind, METH_O, nullptr}, {"lookup", session_lookup, METH_O, nullptr},
    {"arguments", session_arguments, METH_O, nullptr}, {"begin_run", session_begin_run, METH_NOARGS, nullptr},
    {"release", session_release, METH_O, nullptr}, {"unflag", session_unflag, METH_O, nullptr}, {"flag", session_flag, METH_O, nullptr},
    {"live", session_live, METH_NOARGS, nullptr},
    {"alive", session_alive, METH_NOARGS, nullptr}, {"weaken", session_weaken, METH_NOARGS, nullptr},
    {"freeze", session_freeze, METH_NOARGS, nullptr}, {"thaw", FAST(session_thaw)}, {"keys", session_keys, METH_NOARGS, nullptr},
    {"abandoned", session_abandoned, METH_NOARGS, nullptr}, {"forget_input", session_forget_input, METH_O, nullptr},
    {"overlaps", session_overlaps, METH_NOARGS, nullptr}, {"stale", FAST(session_stale)},
    {"shift", session_shift, METH_O, nullptr}, {"meta", session_meta, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr}};
PyGetSetDef session_getset[] = {
    {"current", session_current, nullptr, nullptr, nullptr}, {"length", session_length, nullptr, nullptr, nullptr},
    {"slot_count", session_slot_count, nullptr, nullptr, nullptr}, {"path", session_path, nullptr, nullptr, nullptr},
    {"scalars", session_scalars, nullptr, nullptr, nullptr}, {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject NodeType = {PyVarObject_HEAD_INIT(nullptr, 0) "markstep.record._native.Node", sizeof(Node)};
PyTypeObject SessionType = {PyVarObject_HEAD_INIT(nullptr, 0) "markstep.record._native.Session", sizeof(Session)};

// ---------------------------------------------------------------- interception

// While a TorchDispatchMode is active, autograd's formulas and composite operators take other paths than in eager
// execution (at::isTensorSubclassLike), with other rounding, signs of zero, strides and version counters. So the mode is
// active only for the moment in which a call arrives here: at a dispatch key below autograd that torch itself leaves unused
// while no C++ fake tensors are about. Kept with the thread's Python objects, which the autograd threads of a GPU inherit.
constexpr auto kKey = c10::DispatchKey::Fake;
const std::string kMode = "markstep";
using c10::impl::TorchDispatchModeTLS;
using Mode = c10::impl::PyObject_TorchDispatchMode;

// Does an argument dispatch in Python by itself (a tensor subclass)?
bool has_subclass(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  auto subclass = [](const c10::IValue& v) {
    return v.isTensor() && v.toTensor().defined() && v.toTensor().key_set().has(c10::DispatchKey::Python);
  };
  auto args = torch::jit::last(stack, op.schema().arguments().size());
  return std::any_of(args.begin(), args.end(), [&](const c10::IValue& v) {
    if (v.isTensorList() || v.isOptionalTensorList()) { auto l = v.toListRef(); return std::any_of(l.begin(), l.end(), subclass); }
    return subclass(v);
  });
}

// Where the key stands above Python (torch < 2.13), the user's modes must go first, and what they call must come here: Python's
// own kernel would hide this key from them.
constexpr bool kAbovePython = kKey > c10::DispatchKey::Python;
const auto kOthersAbovePython = (c10::DispatchKeySet(c10::DispatchKeySet::FULL) ^
                                 c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::Python))
                                    .remove(c10::DispatchKey::Python)
                                    .remove(kKey);

void on_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  bool hidden = c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python);  // code that wants no modes and subclasses
  bool modes = TorchDispatchModeTLS::any_modes_set();
  if (kAbovePython && modes && !hidden) {
    c10::impl::ExcludeDispatchKeyGuard others(kOthersAbovePython);
    auto mode = TorchDispatchModeTLS::get_stack_at(TorchDispatchModeTLS::stack_len() - 1);
    mode->pyinterpreter()->dispatch(op, stack);
    return;
  }
  if (modes || (hidden && has_subclass(op, *stack))) {
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
    return;
  }
  c10::impl::ExcludeDispatchKeyGuard once(kKey);
  const auto& kept = at::impl::ThreadLocalPythonObjects::get(kMode);
  TorchDispatchModeTLS::push_non_infra_mode_onto_stack(std::shared_ptr<Mode>(kept, (Mode*)kept.get()));
  c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::Python, false);
  struct Restore {
    bool hidden;
    ~Restore() {
      c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::Python, hidden);
      TorchDispatchModeTLS::pop_stack();
    }
  } restore{hidden};
  (*getPyInterpreter())->dispatch(op, stack);
}

TORCH_LIBRARY_IMPL(_, Fake, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_operator>()); }

// intercept(mode | None): sends every operator call of this thread to the mode's __torch_dispatch__, or no longer.
PyObject* mod_intercept(PyObject*, PyObject* mode) {
  HANDLE_TH_ERRORS
  bool on = mode != Py_None;
  std::shared_ptr<c10::SafePyObject> kept;  // none when off: a thread that ends would need Python, which may be gone, to free it
  if (on) {
    auto object = std::make_shared<Mode>(node_get(mode), getPyInterpreter());
    kept = std::shared_ptr<c10::SafePyObject>(object, (c10::SafePyObject*)object.get());
  }
  at::impl::ThreadLocalPythonObjects::set(kMode, kept);
  c10::impl::tls_set_dispatch_key_included(kKey, on);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// ---------------------------------------------------------------- module functions

PyObject* mod_meta(PyObject*, PyObject* tensor) {
  HANDLE_TH_ERRORS
  return meta_tuple(unpack(tensor)->unsafeGetTensorImpl());
  END_HANDLE_TH_ERRORS
}

PyObject* mod_plain(PyObject*, PyObject* tensor) {
  HANDLE_TH_ERRORS
  const at::Tensor* t = unpack(tensor);
  return PyBool_FromLong(t && is_plain(t->unsafeGetTensorImpl()));
  END_HANDLE_TH_ERRORS
}

// pending(tensor): would reading its data raise now?
PyObject* mod_pending(PyObject*, PyObject* tensor) {
  const at::Tensor* t = unpack(tensor);
  if (!t || !t->unsafeGetTensorImpl()->has_storage()) Py_RETURN_FALSE;
  try {
    (void)t->storage().unsafeGetStorageImpl()->data_ptr();
  } catch (...) {
    Py_RETURN_TRUE;
  }
  Py_RETURN_FALSE;
}

// take(old, new): the storage of `old` gets the data of the storage of `new`, which is empty afterwards.
PyObject* mod_take(PyObject*, PyObject* const* a, Py_ssize_t) {
  HANDLE_TH_ERRORS
  auto* to = unpack(a[0])->storage().unsafeGetStorageImpl();
  auto* from = unpack(a[1])->storage().unsafeGetStorageImpl();
  to->set_allocator(from->allocator());
  to->set_data_ptr_noswap(std::move(from->_mutable_data_ptr_no_checks()));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// nbytes(tensor): size of its storage in bytes. (Tensor.untyped_storage() would leave a Python object that counts as an
// owner, and autograd adds gradients up in place only when there is no other.)
PyObject* mod_nbytes(PyObject*, PyObject* tensor) {
  HANDLE_TH_ERRORS
  return PyLong_FromSize_t(unpack(tensor)->storage().nbytes());
  END_HANDLE_TH_ERRORS
}

// stand_in(generator): makes a torch.Generator object stand for the default generator of the CPU.
PyObject* mod_stand_in(PyObject*, PyObject* generator) {
  HANDLE_TH_ERRORS
  reinterpret_cast<THPGenerator*>(generator)->cdata = at::detail::getDefaultCPUGenerator();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// setup(Ref, Scalar, New, Same): the template classes.
PyObject* mod_setup(PyObject*, PyObject* args) {
  if (!PyArg_ParseTuple(args, "OOOO", &g_ref, &g_scalar, &g_new, &g_same)) return nullptr;
  Py_INCREF(g_ref); Py_INCREF(g_scalar); Py_INCREF(g_new); Py_INCREF(g_same);
  Py_RETURN_NONE;
}

PyMethodDef module_methods[] = {
    {"meta", mod_meta, METH_O, nullptr}, {"is_plain", mod_plain, METH_O, nullptr}, {"is_pending", mod_pending, METH_O, nullptr},
    {"stand_in", mod_stand_in, METH_O, nullptr}, {"nbytes", mod_nbytes, METH_O, nullptr}, {"take", FAST(mod_take)}, {"setup", mod_setup, METH_VARARGS, nullptr},
    {"intercept", mod_intercept, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};
PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "_native", nullptr, -1, module_methods};

}  // namespace

PyMODINIT_FUNC PyInit__native() {
  NodeType.tp_flags = Py_TPFLAGS_DEFAULT;
  NodeType.tp_new = node_new;
  NodeType.tp_dealloc = node_dealloc;
  NodeType.tp_methods = node_methods;
  NodeType.tp_getset = node_getset;
  SessionType.tp_flags = Py_TPFLAGS_DEFAULT;
  SessionType.tp_new = session_new;
  SessionType.tp_dealloc = session_dealloc;
  SessionType.tp_methods = session_methods;
  SessionType.tp_getset = session_getset;
  if (PyType_Ready(&NodeType) < 0 || PyType_Ready(&SessionType) < 0) return nullptr;
  PyObject* m = PyModule_Create(&module_def);
  g_miss = PyObject_CallNoArgs(reinterpret_cast<PyObject*>(&PyBaseObject_Type));
  Py_INCREF(g_miss);
  PyModule_AddObject(m, "MISS", g_miss);
  PyModule_AddObject(m, "Node", reinterpret_cast<PyObject*>(&NodeType));
  PyModule_AddObject(m, "Session", reinterpret_cast<PyObject*>(&SessionType));
  return m;
}
