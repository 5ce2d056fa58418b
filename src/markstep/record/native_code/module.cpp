// The hot path of recording and predicting, on CPython's and c10's C++ interfaces.
//
// A `Node` is one recorded call in the tree of programs. A `Session` follows the tree while the user's Python runs:
// `match` compares an operator call with the expected one and hands out tensors that have a storage without data
// ("handles"). A handle is an ordinary torch.Tensor; reading its data raises until `fill` moves real data in, so every
// alias (views, autograd's saved tensors, p.grad) becomes real at the same moment.
//
// Identity of a value: (storage, offset, size, stride, dtype). Slots number the storages of a path in order of first use.
// Offsets on a storage that exists before the step count from its first use, so batches may be slices of one tensor.
//
// Read metadata.h, tree.h, matching.h, session.h, interception.h, in this order; arena.h, cross_entropy.h, products.h and xla.h stand beside them.

#include "arena.h"
#include "cross_entropy.h"
#include "interception.h"
#include "products.h"
#include "xla.h"

namespace {

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
    {"arena", mod_arena, METH_O, nullptr}, {"arena_trim", mod_arena_trim, METH_NOARGS, nullptr}, {"arena_bytes", mod_arena_bytes, METH_NOARGS, nullptr},
    {"cross_entropy_", mod_cross_entropy, METH_VARARGS, nullptr}, {"has_onednn_product", mod_has_onednn_product, METH_NOARGS, nullptr},
    {"onednn_product", FAST(mod_onednn_product)}, {"intercept", mod_intercept, METH_VARARGS, nullptr},
    {"following", mod_following, METH_NOARGS, nullptr}, {"xla_register", xla::mod_register, METH_VARARGS, nullptr}, {"xla_start_backward", xla::mod_start_backward, METH_NOARGS, nullptr}, {"xla_to_real", xla::mod_to_real, METH_O, nullptr},
    {"xla_from_real", xla::mod_from_real, METH_O, nullptr}, {"xla_counts", xla::mod_counts, METH_NOARGS, nullptr},
    {"xla_clear_counts", xla::mod_clear_counts, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
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
