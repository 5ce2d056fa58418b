#pragma once

// The tree of programs: a `Node` is one recorded call.

#include "metadata.h"

namespace {

enum Kind : uint8_t { TENSOR, CONST, SCALAR, LIST, TUPLE, NEW, VIEW, SAME };
// What a constant is among the arguments of PyTorch's dispatcher, which holds dtypes, layouts and memory formats as integers.
enum Form : uint8_t { OTHER, NONE, BOOL, INT, DOUBLE, STRING, DEVICE };

struct Item {
  Kind kind;
  Form form = OTHER;          // of a constant
  int32_t a = 0;              // slot | length | flat tensor position (SAME)
  PyObject* obj = nullptr;    // constant, or the type of a promoted scalar
  std::shared_ptr<Meta> meta;
  int64_t nbytes = 0;
  double limit = 0;           // of a promoted scalar
  int64_t number = 0;         // of a constant that is BOOL or INT
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
  std::optional<c10::OperatorHandle>* op;  // none: only Python compares calls with this one
  std::vector<int16_t>* given;             // the operator's arguments that the call gives, in the order of `args`
  std::vector<int16_t>* rest;              // the others, which have their defaults
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

void read_constant(Item& item) {
  PyObject* o = item.obj;
  if (o == Py_None) {
    item.form = NONE;
  } else if (PyBool_Check(o)) {
    item.form = BOOL;
    item.number = o == Py_True;
  } else if (PyLong_CheckExact(o)) {
    int overflow = 0;
    item.number = PyLong_AsLongLongAndOverflow(o, &overflow);
    item.form = overflow ? OTHER : INT;
  } else if (PyFloat_CheckExact(o)) {
    item.form = DOUBLE;
  } else if (PyUnicode_CheckExact(o)) {
    item.form = STRING;
  } else if (THPDevice_Check(o)) {
    item.form = DEVICE;
  } else if (THPDtype_Check(o) || THPLayout_Check(o) || THPMemoryFormat_Check(o)) {
    item.form = INT;
    item.number = THPDtype_Check(o) ? (int64_t) reinterpret_cast<THPDtype*>(o)->scalar_type
        : THPLayout_Check(o)        ? (int64_t) reinterpret_cast<THPLayout*>(o)->layout
                                    : (int64_t) reinterpret_cast<THPMemoryFormat*>(o)->memory_format;
  }
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
    read_constant(item);
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

// Can results of this kind be given to the dispatcher without Python?
bool is_direct(const std::vector<Item>& outs, const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  if (returns.empty()) return outs.size() == 1 && outs[0].kind == CONST && outs[0].form == NONE;
  if (returns.size() > 1 && (outs[0].kind != TUPLE || (size_t)outs[0].a != returns.size())) return false;
  size_t at = returns.size() > 1;
  for (const auto& r : returns) {
    const Item& item = outs[at++];
    bool list = r.type()->kind() == c10::TypeKind::ListType;
    if (list != (item.kind == LIST) || item.kind == TUPLE) return false;
    auto single = [](const Item& i) { return i.kind == NEW || i.kind == VIEW || i.kind == SAME; };
    if (!list && !single(item) && !(item.kind == CONST && (item.form == NONE || item.form == INT))) return false;
    for (int32_t i = 0; list && i < item.a; i++)
      if (!single(outs[at++])) return false;
  }
  return at == outs.size();
}

// Which arguments of the operator the call gives; without `op`, Python has to compare.
void read_operator(Node* n) {
  n->op->reset();
  n->given->clear();
  n->rest->clear();
  if (std::strcmp(Py_TYPE(n->func)->tp_name, "OpOverload") != 0) return;
  PyObject* name = PyObject_CallMethod(n->func, "name", nullptr);
  const char* text = name ? PyUnicode_AsUTF8(name) : nullptr;
  if (!text) { PyErr_Clear(); Py_XDECREF(name); return; }
  std::string full(text);
  Py_DECREF(name);
  if (full.rfind("aten::", 0) != 0) return;  // other operators may go, and others come to the same address
  auto dot = full.find('.', full.find("::"));
  auto op = c10::Dispatcher::singleton().findSchema(
      {full.substr(0, dot), dot == std::string::npos ? std::string() : full.substr(dot + 1)});
  if (!op || !is_direct(*n->outs, op->schema())) return;
  const auto& arguments = op->schema().arguments();
  for (Py_ssize_t i = 0; i < n->nargs; i++) n->given->push_back((int16_t)i);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(n->kwnames); i++) {
    const char* key = PyUnicode_AsUTF8(PyTuple_GET_ITEM(n->kwnames, i));
    auto found = std::find_if(arguments.begin(), arguments.end(), [&](const auto& a) { return a.name() == key; });
    n->given->push_back((int16_t)(found - arguments.begin()));
  }
  for (int16_t i = 0; (size_t)i < arguments.size(); i++)
    if (std::find(n->given->begin(), n->given->end(), i) == n->given->end()) {
      if (!arguments[(size_t)i].default_value()) return;
      n->rest->push_back(i);
    }
  for (auto i : *n->given)
    if ((size_t)i >= arguments.size()) return;
  *n->op = op;
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
    if (ok) read_operator(n);
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
  n->op = new std::optional<c10::OperatorHandle>(); n->given = new std::vector<int16_t>(); n->rest = new std::vector<int16_t>();
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
  delete n->op; delete n->given; delete n->rest;
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

}  // namespace
