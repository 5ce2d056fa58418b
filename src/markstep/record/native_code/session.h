#pragma once

// `Session` as Python sees it.

#include "direct.h"

namespace {

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
// node(i): call i of the path.
PyObject* session_node(PyObject* self, PyObject* index) {
  return node_get(reinterpret_cast<PyObject*>(as_session(self)->s->path[(size_t)PyLong_AsSsize_t(index)].node));
}
PyObject* session_scalars(PyObject* self, void*) {
  auto& values = as_session(self)->s->scalars;
  PyObject* list = PyList_New((Py_ssize_t)values.size());
  for (size_t i = 0; i < values.size(); i++) PyList_SET_ITEM(list, (Py_ssize_t)i, node_get(values[i]));
  return list;
}

PyObject* session_predicting(PyObject* self, void*) { return PyBool_FromLong(as_session(self)->s->predicting); }
PyObject* session_paused(PyObject* self, void*) { return PyLong_FromLong(as_session(self)->s->paused); }
int session_set_predicting(PyObject* self, PyObject* value, void*) {
  int on = value ? PyObject_IsTrue(value) : 0;
  as_session(self)->s->predicting = on == 1;
  return on < 0 ? -1 : 0;
}
int session_set_paused(PyObject* self, PyObject* value, void*) {
  as_session(self)->s->paused = value ? (int)PyLong_AsLong(value) : 0;
  return PyErr_Occurred() ? -1 : 0;
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
    {"node", session_node, METH_O, nullptr}, {"shift", session_shift, METH_O, nullptr}, {"meta", session_meta, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr}};
PyGetSetDef session_getset[] = {
    {"current", session_current, nullptr, nullptr, nullptr}, {"length", session_length, nullptr, nullptr, nullptr},
    {"slot_count", session_slot_count, nullptr, nullptr, nullptr}, {"path", session_path, nullptr, nullptr, nullptr},
    {"scalars", session_scalars, nullptr, nullptr, nullptr}, {"predicting", session_predicting, session_set_predicting, nullptr, nullptr},
    {"paused", session_paused, session_set_paused, nullptr, nullptr}, {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject NodeType = {PyVarObject_HEAD_INIT(nullptr, 0) "markstep.record._native.Node", sizeof(Node)};
PyTypeObject SessionType = {PyVarObject_HEAD_INIT(nullptr, 0) "markstep.record._native.Session", sizeof(Session)};

}  // namespace
