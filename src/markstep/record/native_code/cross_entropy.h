#pragma once

// Logits that become the gradient of the cross-entropy loss in place; see codegen/head.py. A row stays in the processor's
// cache between its three passes, so that memory is read and written once.

#include "matching.h"

#include <ATen/TensorIterator.h>

#include <bit>
#include <limits>

// The compiler vectorises the loops for the processor that runs them: the lanes below leave it no order to keep.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MARKSTEP_VECTORISED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#else
#define MARKSTEP_VECTORISED
#endif

namespace {

constexpr int kLanes = 32;

inline __attribute__((always_inline)) float widen(float x) { return x; }
inline __attribute__((always_inline)) float widen(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }
inline __attribute__((always_inline)) void narrow(float x, float* to) { *to = x; }
inline __attribute__((always_inline)) void narrow(float x, uint16_t* to) {  // to the nearest, ties to even; NaN stays NaN
  uint32_t bits = std::bit_cast<uint32_t>(x);
  uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  *to = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

// e^x for x <= 0, within 2 units in the last place; below -87 it is 0. (Cephes' polynomial for 2^f, f in [-1/2, 1/2].)
inline __attribute__((always_inline)) float exponential(float x) {
  float clamped = x < -87.0f ? -87.0f : x;
  float n = clamped * 1.44269504f + 12582912.0f;  // rounds to the nearest integer
  int32_t exponent = std::bit_cast<int32_t>(n) - std::bit_cast<int32_t>(12582912.0f);
  n -= 12582912.0f;
  float f = clamped - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * f + 1.3981999507e-3f;
  p = p * f + 8.3334519073e-3f;
  p = p * f + 4.1665795894e-2f;
  p = p * f + 1.6666665459e-1f;
  p = p * f + 5.0000001201e-1f;
  p = p * f * f + f + 1.0f;
  float scaled = p * std::bit_cast<float>((exponent + 127) << 23);
  return x < -87.0f ? 0.0f : x == x ? scaled : x;
}

template <class T>
inline __attribute__((always_inline)) float softmax_gradient(T* row, int64_t n, int64_t label, float scale) {
  float lanes[kLanes];
  for (int k = 0; k < kLanes; k++) lanes[k] = -std::numeric_limits<float>::infinity();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int k = 0; k < kLanes; k++) {
      float x = widen(row[i + k]);
      lanes[k] = lanes[k] > x ? lanes[k] : x;
    }
  for (int k = 0; i < n; i++, k++) lanes[k] = std::max(lanes[k], widen(row[i]));
  float largest = lanes[0];
  for (int k = 1; k < kLanes; k++) largest = std::max(largest, lanes[k]);

  for (int k = 0; k < kLanes; k++) lanes[k] = 0.0f;
  for (i = 0; i + kLanes <= n; i += kLanes)
    for (int k = 0; k < kLanes; k++) lanes[k] += exponential(widen(row[i + k]) - largest);
  for (int k = 0; i < n; i++, k++) lanes[k] += exponential(widen(row[i]) - largest);
  float sum = 0.0f;
  for (int k = 0; k < kLanes; k++) sum += lanes[k];

  float loss = std::log(sum) - (widen(row[label]) - largest), factor = scale / sum;
  float own = exponential(widen(row[label]) - largest) * factor - scale;
  for (i = 0; i < n; i++) narrow(exponential(widen(row[i]) - largest) * factor, row + i);
  narrow(own, row + label);
  return loss;
}

MARKSTEP_VECTORISED float softmax_gradient_fp32(float* row, int64_t n, int64_t label, float scale) {
  return softmax_gradient(row, n, label, scale);
}
MARKSTEP_VECTORISED float softmax_gradient_bf16(uint16_t* row, int64_t n, int64_t label, float scale) {
  return softmax_gradient(row, n, label, scale);
}

// cross_entropy_(logits, labels, losses, scale, ignore_index): logits (rows, classes) in fp32 or bf16, contiguous; labels
// (rows,) in int64, classes or ignore_index; losses (rows,) in fp32 gets the loss of every row.
PyObject* mod_cross_entropy(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *py_logits, *py_labels, *py_losses;
  double scale;
  long long ignored;
  if (!PyArg_ParseTuple(args, "OOOdL", &py_logits, &py_labels, &py_losses, &scale, &ignored)) return nullptr;
  const at::Tensor &logits = *unpack(py_logits), &labels = *unpack(py_labels), &losses = *unpack(py_losses);
  TORCH_CHECK(logits.dim() == 2 && logits.is_contiguous() && labels.scalar_type() == at::kLong && losses.scalar_type() == at::kFloat);
  bool wide = logits.scalar_type() == at::kFloat;
  TORCH_CHECK(wide || logits.scalar_type() == at::kBFloat16);
  at::Tensor first = logits.select(1, 0);
  int64_t n = logits.size(1);
  // PyTorch's own loop, so that its threads do the work; one element of it is a row.
  auto rows = at::TensorIteratorConfig()
                  .check_all_same_dtype(false)
                  .set_check_mem_overlap(false)
                  .resize_outputs(false)
                  .add_output(losses)
                  .add_const_input(first)
                  .add_const_input(labels)
                  .build();
  PyThreadState* saved = PyEval_SaveThread();
  rows.for_each(
      [&](char** data, const int64_t* strides, int64_t count) {
        for (int64_t i = 0; i < count; i++) {
          auto* loss = reinterpret_cast<float*>(data[0] + i * strides[0]);
          char* row = data[1] + i * strides[1];
          int64_t label = *reinterpret_cast<int64_t*>(data[2] + i * strides[2]);
          if (label == ignored) {
            std::memset(row, 0, n * (wide ? 4 : 2));
            *loss = 0.0f;
          } else {
            *loss = wide ? softmax_gradient_fp32(reinterpret_cast<float*>(row), n, label, static_cast<float>(scale))
                         : softmax_gradient_bf16(reinterpret_cast<uint16_t*>(row), n, label, static_cast<float>(scale));
          }
        }
      },
      1);
  PyEval_RestoreThread(saved);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

}  // namespace
