#pragma once

// What all parts share.

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
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
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

}  // namespace
