#pragma once

// The state of a session, and the comparison of a call with the expected one.

#include "tree.h"

namespace {

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
  bool predicting = false;  // what the engine does with calls now; while it is paused they go to Python
  int paused = 0;

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

bool match_tensor(State& st, const Item& item, const at::Tensor& t) {
  if (!is_plain(t.unsafeGetTensorImpl())) return false;
  auto* key = t.storage().unsafeGetStorageImpl();
  bool bound = (size_t)item.a < st.slots.size();
  int64_t shift = bound ? st.slots[(size_t)item.a].shift : t.storage_offset() - item.meta->offset;
  if (!item.meta->fits(t.unsafeGetTensorImpl(), shift)) return false;
  if (bound) return st.slots[(size_t)item.a].key == key;
  if (st.index.count(key) || bind(st, t) != item.a) return false;
  st.slots.back().shift = shift;
  return true;
}

// Compares one argument tree with the template; binds input slots and scalars on the way.
bool match_value(State& st, const std::vector<Item>& items, size_t& at, PyObject* value) {
  const Item& item = items[at++];
  switch (item.kind) {
    case TENSOR: {
      const at::Tensor* t = unpack(value);
      return t && match_tensor(st, item, *t);
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

// A call was compared with a node, whose arguments bound slots and scalars from these numbers on.
bool settle(State& st, Node* n, bool ok, size_t slots, size_t scalars) {
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
  return settle(st, n, ok, slots, scalars);
}

// Programs do not hold the default dtype.
bool default_dtype_fits() { return c10::get_default_dtype_as_scalartype() == c10::ScalarType::Float; }

Node* follow(State& st, PyObject* func, PyObject* args, PyObject* kwargs, bool specials) {
  if (!default_dtype_fits()) return nullptr;
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

at::Tensor new_handle(State& st, const Item& item) {
  Slot slot;
  slot.nbytes = item.nbytes;
  slot.device = item.meta->device;
  defer(slot);
  auto storage = std::move(slot.strong);
  slot.key = storage.get();
  slot.weak = c10::weak_intrusive_ptr<c10::StorageImpl>(storage);
  st.index.emplace(slot.key, (int32_t)st.slots.size());
  st.slots.push_back(std::move(slot));
  return tensor_on(storage, *item.meta);
}

at::Tensor view_of(State& st, const Item& item) {
  const Slot& slot = st.slots[(size_t)item.a];
  return tensor_on(slot.storage(), *item.meta, slot.shift);
}

PyObject* make_output(State& st, Node* n, size_t& at, PyObject* args, PyObject* kwargs) {
  const Item& item = (*n->outs)[at++];
  switch (item.kind) {
    case NEW:
      return THPVariable_Wrap(new_handle(st, item));
    case VIEW:
      return THPVariable_Wrap(view_of(st, item));
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

}  // namespace
