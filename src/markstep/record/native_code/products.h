#pragma once

// Matrix products by oneDNN in dtypes that PyTorch leaves to another library.

#include "common.h"

namespace at::native {
// Exported, but not declared in an installed header; absent where PyTorch was built without oneDNN.
__attribute__((weak)) void mkldnn_matmul(const Tensor& left, const Tensor& right, const Tensor& result, float beta, float alpha);
}  // namespace at::native

namespace {

PyObject* mod_has_onednn_product(PyObject*, PyObject*) { return PyBool_FromLong(at::native::mkldnn_matmul != nullptr); }

// onednn_product(a, b, out, beta): out = beta * out + a @ b, for matrices or batches of them.
PyObject* mod_onednn_product(PyObject*, PyObject* const* a, Py_ssize_t) {
  HANDLE_TH_ERRORS
  const at::Tensor &left = *unpack(a[0]), &right = *unpack(a[1]), &out = *unpack(a[2]);
  float beta = static_cast<float>(PyFloat_AsDouble(a[3]));
  if (PyErr_Occurred()) return nullptr;
  int64_t d = out.dim();
  TORCH_CHECK(d >= 2 && left.dim() == d && right.dim() == d && out.is_contiguous() && left.size(-1) == right.size(-2) &&
                  out.size(-2) == left.size(-2) && out.size(-1) == right.size(-1) &&
                  (d == 2 || (left.size(0) == out.size(0) && right.size(0) == out.size(0))),
              "onednn_product: sizes do not fit");
  PyThreadState* saved = PyEval_SaveThread();
  try {
    at::native::mkldnn_matmul(left, right, out, beta, 1.0f);
  } catch (...) {
    PyEval_RestoreThread(saved);
    throw;
  }
  PyEval_RestoreThread(saved);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

}  // namespace
