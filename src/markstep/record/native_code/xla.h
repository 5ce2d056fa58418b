#pragma once

// The xla device: tensors of device xla:0 that stand for tensors of a real device.
//
// An xla tensor is an ordinary TensorImpl with sizes, strides and offset. Its storage holds no data, only a reference to the
// storage of the real device. An operator on xla tensors is called again on real tensors with the same sizes, strides and
// storages, and results become xla tensors; the same storage always becomes the same storage. So views, in-place operators
// and errors are PyTorch's own, and what Markstep follows is a program of the real device.

#include <ATen/TensorUtils.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/_embedding_bag_backward_native.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/linear_native.h>
#include <ATen/ops/reshape.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <ATen/ops/where.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <torch/csrc/autograd/engine.h>

#include <mutex>
#include <thread>

#include "interception.h"

namespace {

namespace xla {

using StoragePtr = c10::intrusive_ptr<c10::StorageImpl>;

c10::Device g_real(c10::DeviceType::CPU);
PyObject* g_before_reading = nullptr;  // called with (mode, real tensor, operator) before a value leaves the device
std::mutex g_counting;
std::unordered_map<c10::OperatorName, int64_t> g_counts;

// What the storage of an xla tensor holds in place of data.
struct Owner {
  StoragePtr real;
  // Where PyTorch has no view (say `t.t().view(-1)`), a copy was given, as torch_xla does. Storages of which one is
  // such a copy of the other, while both exist, may not be written to: that would be seen in one of them only.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> copies;
};

void delete_owner(void* owner) { delete static_cast<Owner*>(owner); }

Owner* owner_of(const c10::Storage& storage) {
  const auto& data = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  TORCH_CHECK(data.get_deleter() == &delete_owner, "this xla storage was not made by Markstep");
  return static_cast<Owner*>(data.get_context());
}

bool is_xla(const at::Tensor& t) { return t.defined() && t.device().type() == c10::DeviceType::XLA; }

at::Tensor like(const at::Tensor& t, const c10::Storage& storage, c10::Device device) {
  auto key = c10::computeDispatchKey(t.scalar_type(), c10::Layout::Strided, device);
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key), t.dtype());
  auto *from = t.unsafeGetTensorImpl(), *to = made.unsafeGetTensorImpl();
  to->set_sizes_and_strides(from->sizes(), from->strides(), from->storage_offset());
  if (from->is_conj()) to->_set_conj(true);
  if (from->is_neg()) to->_set_neg(true);
  if (from->is_wrapped_number()) to->set_wrapped_number(true);
  return made;
}

at::Tensor to_real(const at::Tensor& t) { return like(t, c10::Storage(owner_of(t.storage())->real), g_real); }

c10::Storage make_storage(const c10::Storage& real) {
  auto* owner = new Owner{StoragePtr::reclaim_copy(real.unsafeGetStorageImpl()), {}};
  c10::DataPtr data(nullptr, owner, &delete_owner, c10::Device(c10::DeviceType::XLA, 0));
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), real.nbytes(), std::move(data), nullptr, false));
}

struct Pair {
  at::Tensor xla, real;
};
using Pairs = c10::SmallVector<Pair, 8>;

at::Tensor from_real(const at::Tensor& r, const Pairs& pairs) {
  if (!r.defined()) return r;
  for (const auto& p : pairs)
    if (p.real.unsafeGetTensorImpl() == r.unsafeGetTensorImpl()) return p.xla;
  TORCH_CHECK(r.layout() == c10::Layout::Strided && r.has_storage(), "the xla device holds only strided tensors, not ", r.layout(),
              ": move the operands to the CPU first");
  for (const auto& p : pairs)
    if (is_xla(p.xla) && p.real.storage().unsafeGetStorageImpl() == r.storage().unsafeGetStorageImpl())
      return like(r, p.xla.storage(), c10::Device(c10::DeviceType::XLA, 0));
  return like(r, make_storage(r.storage()), c10::Device(c10::DeviceType::XLA, 0));
}

// What an operator did to the metadata of an argument.
void update(const Pair& p, const Pairs& pairs) {
  auto *x = p.xla.unsafeGetTensorImpl(), *r = p.real.unsafeGetTensorImpl();
  const auto& storage = r->unsafe_storage();
  if (storage.unsafeGetStorageImpl() != owner_of(x->unsafe_storage())->real.get()) {
    auto other = std::find_if(pairs.begin(), pairs.end(), [&](const Pair& q) {
      return is_xla(q.xla) && q.xla.unsafeGetTensorImpl() != x && owner_of(q.xla.storage())->real.get() == storage.unsafeGetStorageImpl();
    });
    x->set_storage_keep_dtype(other == pairs.end() ? make_storage(storage) : other->xla.storage());
  }
  x->unsafe_storage().unsafeGetStorageImpl()->set_nbytes(storage.nbytes());
  if (x->sizes() != r->sizes() || x->strides() != r->strides() || x->storage_offset() != r->storage_offset())
    x->set_sizes_and_strides(r->sizes(), r->strides(), r->storage_offset());
}

void refuse_if_copied(const at::Tensor& t) {
  for (const auto& other : owner_of(t.storage())->copies)
    TORCH_CHECK(other.use_count() == 0,
                "a tensor is written to of which a view was taken that PyTorch can only give as a copy (a .view() of a tensor whose "
                "memory is in another order): the write would be seen in one of them only. Use .reshape() or .contiguous() instead of .view()");
}

void before_reading(const at::Tensor& real, const std::string& what, const std::shared_ptr<c10::SafePyObject>& mode) {
  if (!mode || !g_before_reading) return;
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject* tensor = THPVariable_Wrap(real);
  PyObject* done = PyObject_CallFunction(g_before_reading, "OOs", mode->ptr(getPyInterpreter()), tensor, what.c_str());
  Py_XDECREF(tensor);
  Py_XDECREF(done);
  if (!done) {
    python_error error;
    error.persist();
    PyGILState_Release(gil);
    throw error;
  }
  PyGILState_Release(gil);
}

// Arguments of one call on their way to the real device.
struct Moved {
  Pairs pairs;
  bool to_host = false;  // the result belongs to the CPU
  bool snapshot = false;  // tensors of the CPU may change before the call runs: it gets copies

  at::Tensor tensor(const at::Tensor& t, bool written) {
    if (!t.defined()) return t;
    if (is_xla(t)) {
      for (const auto& p : pairs)
        if (p.xla.unsafeGetTensorImpl() == t.unsafeGetTensorImpl()) return p.real;
      if (written) refuse_if_copied(t);
      pairs.push_back({t, to_real(t)});
      return pairs.back().real;
    }
    if (written) to_host = true;
    if (written || t.unsafeGetTensorImpl()->is_wrapped_number()) return t;
    bool foreign = t.device() != g_real;
    if (!foreign && !snapshot) return t;
    c10::impl::ExcludeDispatchKeyGuard unseen(kKey);
    at::AutoDispatchBelowADInplaceOrView below;
    return foreign ? t.to(g_real) : t.clone();
  }

  void value(c10::IValue& v, bool written) {
    if (v.isTensor()) {
      v = tensor(v.toTensor(), written);
    } else if (v.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : v.toTensorVector()) list.push_back(tensor(t, written));
      v = std::move(list);
    } else if (v.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& t : v.toOptionalTensorList().vec())
        list.push_back(t ? std::optional<at::Tensor>(tensor(*t, written)) : std::nullopt);
      v = std::move(list);
    } else if (v.isDevice()) {
      if (v.toDevice().type() == c10::DeviceType::XLA) v = g_real;
      else if (v.toDevice().type() == c10::DeviceType::CPU) to_host = true;
    } else if (v.isStorage()) {
      if (v.toStorage().device().type() == c10::DeviceType::XLA) v = c10::Storage(owner_of(v.toStorage())->real);
    }
  }
};

void wrap(c10::IValue& v, const Pairs& pairs) {
  if (v.isTensor()) {
    v = from_real(v.toTensor(), pairs);
  } else if (v.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : v.toTensorVector()) list.push_back(from_real(t, pairs));
    v = std::move(list);
  }
}

void count(const c10::OperatorHandle& op) {
  std::lock_guard<std::mutex> lock(g_counting);
  g_counts[op.operator_name()]++;
}

// `view` where PyTorch has none: a copy, that is remembered as one.
bool view_by_copy(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const auto view = c10::Dispatcher::singleton().findSchemaOrThrow("aten::view", "");
  if (!(op == view)) return false;
  const at::Tensor t = (*stack)[stack->size() - 2].toTensor();
  auto sizes = (*stack)[stack->size() - 1].toIntVector();
  auto unknown = std::find(sizes.begin(), sizes.end(), -1);
  if (unknown != sizes.end()) {
    int64_t known = 1;
    for (auto n : sizes) known *= n;
    if (known == 0 || t.numel() % -known) return false;
    *unknown = t.numel() / -known;
  }
  int64_t numel = 1;
  for (auto n : sizes) numel *= n;
  if (numel != t.numel() || at::detail::computeStride(t.sizes(), t.strides(), sizes)) return false;
  at::Tensor copy = at::reshape(t, sizes);
  owner_of(t.storage())->copies.emplace_back(StoragePtr::reclaim_copy(copy.storage().unsafeGetStorageImpl()));
  owner_of(copy.storage())->copies.emplace_back(StoragePtr::reclaim_copy(t.storage().unsafeGetStorageImpl()));
  torch::jit::drop(stack, 2);
  torch::jit::push(stack, copy);
  return true;
}

// XLA takes class numbers in a floating dtype.
void class_numbers(const c10::OperatorHandle& op, torch::jit::Stack* stack, size_t base) {
  if (op.operator_name().name.rfind("aten::nll_loss", 0) != 0) return;
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); i++)
    if (arguments[i].name() == "target" && (*stack)[base + i].toTensor().is_floating_point())
      (*stack)[base + i] = (*stack)[base + i].toTensor().to(at::kLong);
}

// Backward of xla tensors runs in the thread that calls it: a thread of autograd's would compute with a pool of OpenMP threads
// of its own, beside the one that forward left spinning on the same cores (ResNet-small on two cores: a step took 1.5 times as long).
void one_thread() {
  thread_local bool done = false;
  if (!done) c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  done = true;
}

void on_operator(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  one_thread();
  const auto& schema = op.schema();
  const size_t n = schema.arguments().size(), base = stack->size() - n;
  auto is_meta = [](const c10::IValue& v) { return v.isTensor() && v.toTensor().defined() && v.toTensor().device().is_meta(); };
  if (std::any_of(stack->begin() + (long)base, stack->end(), is_meta)) {  // the inside of a fake tensor
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
    return;
  }
  count(op);
  at::AutoDispatchBelowADInplaceOrView below;
  if (view_by_copy(op, stack)) return;
  class_numbers(op, stack, base);
  auto mode = following();
  Moved moved;
  const bool everything = c10::impl::tls_is_dispatch_key_included(kKey);  // the CPU's calls are followed, too
  moved.snapshot = mode && !everything;
  for (size_t i = 0; i < n; i++) {
    const auto* alias = schema.arguments()[i].alias_info();
    moved.value((*stack)[base + i], alias && alias->isWrite());
  }
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (moved.to_host && !everything) {
    for (const auto& p : moved.pairs) before_reading(p.real, op.operator_name().name, mode);
    c10::impl::ExcludeDispatchKeyGuard unseen(kKey);
    op.callBoxed(stack);
  } else if (mode && !everything) {
    c10::impl::IncludeDispatchKeyGuard seen(kKey);
    op.callBoxed(stack);
  } else {
    op.callBoxed(stack);
  }
  if (!moved.to_host)
    for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); i++) wrap((*stack)[i], moved.pairs);
  if (schema.is_mutable())
    for (const auto& p : moved.pairs) update(p, moved.pairs);
}

// ---------------------------------------------------------------- composite operators that ask for the device

// As PyTorch's own, which on xla tensors leaves the fused product with the bias out.
at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  if (bias && bias->defined() && input.dim() == 3 && weight.dim() == 2 && bias->dim() == 1 && input.is_contiguous()) {
    auto flat = at::addmm(*bias, input.reshape({-1, input.size(2)}), weight.t());
    return flat.view({input.size(0), input.size(1), flat.size(1)});
  }
  return at::native::linear(input, weight, bias);
}

// PyTorch's own, with the choice that it makes for the real device.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>& mask,
                     double dropout, bool causal, std::optional<double> scale, bool grouped) {
  bool fits = g_real.is_cpu() && is_xla(query) && is_xla(key) && is_xla(value) && query.dim() == 4 && !grouped &&
              (!mask || !mask->defined() || is_xla(*mask));
  if (fits && at::_fused_sdp_choice(query, key, value, mask, dropout, causal, scale, grouped) == 1) {
    std::optional<at::Tensor> added = mask;
    if (mask && mask->defined() && mask->scalar_type() == at::kBool)
      added = at::where(*mask, 0.0, at::scalar_tensor(-std::numeric_limits<double>::infinity(), query.options()));
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, causal, added, scale));
  }
  return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, causal, scale, grouped);
}

// Gradients of embeddings are dense on this device, whatever `sparse` says, as in torch_xla.
at::Tensor embedding_backward(const at::Tensor& grad, const at::Tensor& indices, c10::SymInt count, c10::SymInt padding, bool by_frequency, bool) {
  return at::embedding_dense_backward_symint(grad, indices, std::move(count), std::move(padding), by_frequency);
}

at::Tensor embedding_bag_backward(const at::Tensor& grad, const at::Tensor& indices, const at::Tensor& offsets, const at::Tensor& offset2bag,
                                  const at::Tensor& bag_size, const at::Tensor& maximum, c10::SymInt count, bool by_frequency, int64_t mode,
                                  bool, const std::optional<at::Tensor>& weights, int64_t padding) {
  return at::native::_embedding_bag_backward_symint(grad, indices, offsets, offset2bag, bag_size, maximum, std::move(count), by_frequency, mode,
                                                    false, weights, padding);
}

// ---------------------------------------------------------------- autocast

template <class Choose>
void cast_and_call(const c10::OperatorHandle& op, torch::jit::Stack* stack, Choose choose) {
  c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::AutocastXLA);
  const size_t n = op.schema().arguments().size(), base = stack->size() - n;
  auto type = choose(base);
  auto cast = [&](const at::Tensor& t) { return at::autocast::cached_cast(type, t, c10::DeviceType::XLA); };
  for (size_t i = base; i < base + n; i++) {
    auto& v = (*stack)[i];
    if (v.isTensor() && v.toTensor().defined()) {
      v = cast(v.toTensor());
    } else if (v.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : v.toTensorVector()) list.push_back(cast(t));
      v = std::move(list);
    }
  }
  op.callBoxed(stack);
}

void in_lower_precision(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  cast_and_call(op, stack, [](size_t) { return at::autocast::get_autocast_dtype(c10::DeviceType::XLA); });
}

void in_fp32(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  cast_and_call(op, stack, [](size_t) { return at::kFloat; });
}

void in_the_widest(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  cast_and_call(op, stack, [&](size_t base) {
    auto type = at::autocast::get_autocast_dtype(c10::DeviceType::XLA);
    for (size_t i = base; i < stack->size(); i++) {
      const auto& v = (*stack)[i];
      if (v.isTensor() && v.toTensor().defined()) type = at::autocast::prioritize(type, v.toTensor(), c10::DeviceType::XLA);
      if (v.isTensorList()) type = at::autocast::prioritize(type, at::TensorList(v.toTensorVector()), c10::DeviceType::XLA);
    }
    return type;
  });
}

// ---------------------------------------------------------------- backward

// Autograd starts a thread for each device number at the first backward of a process. If that came before this device did,
// and the machine has no accelerator, there is none: then one is added, in the way that the language leaves (see common.h).
using Engine = torch::autograd::Engine;
using Queues = std::vector<std::shared_ptr<torch::autograd::ReadyQueue>>;
Queues Engine::*queues_of_devices();
template <Queues Engine::*Member>
struct ReachQueues {
  friend Queues Engine::*queues_of_devices() { return Member; }
};
template struct ReachQueues<&Engine::device_ready_queues_>;

// xla_start_backward(): once, after a backward on the CPU has made sure that autograd's threads run.
PyObject* mod_start_backward(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  auto& engine = Engine::get_default_engine();
  auto& queues = engine.*queues_of_devices();
  if (queues.empty()) {
    queues.push_back(std::make_shared<torch::autograd::ReadyQueue>());
    std::thread([&engine, queue = queues.front()] { engine.thread_init(0, queue, false); }).detach();
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// ---------------------------------------------------------------- Python

std::vector<std::unique_ptr<torch::Library>> g_libraries;

torch::Library& library(const char* name, std::optional<c10::DispatchKey> key) {
  g_libraries.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, name, key, __FILE__, __LINE__));
  return *g_libraries.back();
}

std::string full_name(const c10::OperatorName& name) {
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

// xla_register(device, before_reading, (low, fp32, widest)): once; lists of operator names for autocast.
PyObject* mod_register(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *device, *callback, *lists[3];
  if (!PyArg_ParseTuple(args, "OO(OOO)", &device, &callback, &lists[0], &lists[1], &lists[2])) return nullptr;
  g_real = reinterpret_cast<THPDevice*>(device)->device;
  g_before_reading = node_get(callback);
  static c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::XLA> guard;
  c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::XLA)].store(&guard);
  auto& aten = library("aten", c10::DispatchKey::XLA);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0 || name.name == "aten::_embedding_bag_backward") continue;
    auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
    aten.impl(full_name(name).substr(6).c_str(), torch::CppFunction::makeFromBoxedFunction<&on_operator>());
  }
  aten.impl("_embedding_bag_backward", TORCH_FN(embedding_bag_backward));
  library("_", c10::DispatchKey::XLA).fallback(torch::CppFunction::makeFromBoxedFunction<&on_operator>());
  for (auto key : {c10::DispatchKey::XLA, c10::DispatchKey::AutogradXLA}) {
    auto& own = library("aten", key);
    own.impl("linear", TORCH_FN(linear));
    own.impl("embedding_backward", TORCH_FN(embedding_backward));

    own.impl("scaled_dot_product_attention", TORCH_FN(attention));
  }
  library("_", c10::DispatchKey::AutocastXLA).fallback(torch::CppFunction::makeFallthrough());
  auto& casting = library("aten", c10::DispatchKey::AutocastXLA);
  for (int i = 0; i < 3; i++)
    for (Py_ssize_t j = 0; j < PyList_Size(lists[i]); j++) {
      const char* name = PyUnicode_AsUTF8(PyList_GetItem(lists[i], j));
      casting.impl(name, i == 0   ? torch::CppFunction::makeFromBoxedFunction<&in_lower_precision>()
                         : i == 1 ? torch::CppFunction::makeFromBoxedFunction<&in_fp32>()
                                  : torch::CppFunction::makeFromBoxedFunction<&in_the_widest>());
    }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* mod_to_real(PyObject*, PyObject* tensor) {
  HANDLE_TH_ERRORS
  const at::Tensor* t = unpack(tensor);
  TORCH_CHECK_TYPE(t && is_xla(*t), "expected an xla tensor");
  return THPVariable_Wrap(to_real(*t));
  END_HANDLE_TH_ERRORS
}

PyObject* mod_from_real(PyObject*, PyObject* tensor) {
  HANDLE_TH_ERRORS
  const at::Tensor* t = unpack(tensor);
  TORCH_CHECK_TYPE(t && t->device() == g_real, "expected a tensor of the real device");
  return THPVariable_Wrap(from_real(*t, {}));
  END_HANDLE_TH_ERRORS
}

PyObject* mod_counts(PyObject*, PyObject*) {
  std::lock_guard<std::mutex> lock(g_counting);
  PyObject* counts = PyDict_New();
  for (const auto& [name, number] : g_counts) {
    PyObject* v = PyLong_FromLongLong(number);
    PyDict_SetItemString(counts, full_name(name).c_str(), v);
    Py_DECREF(v);
  }
  return counts;
}

PyObject* mod_clear_counts(PyObject*, PyObject*) {
  std::lock_guard<std::mutex> lock(g_counting);
  g_counts.clear();
  Py_RETURN_NONE;
}

}  // namespace xla

}  // namespace
