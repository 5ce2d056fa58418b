#pragma once

// How a tensor looks at its storage.

#include "common.h"

namespace {

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

}  // namespace
