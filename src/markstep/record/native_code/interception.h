#pragma once

// How operator calls come here.

#include "session.h"

namespace {

// While a TorchDispatchMode is active, autograd's formulas and composite operators take other paths than in eager
// execution (at::isTensorSubclassLike), with other rounding, signs of zero, strides and version counters. So the mode is
// active only for the moment in which a call arrives here: at a dispatch key below autograd that torch itself leaves unused
// while no C++ fake tensors are about. Kept with the thread's Python objects, which the autograd threads of a GPU inherit.
constexpr auto kKey = c10::DispatchKey::Fake;
const std::string kMode = "markstep";
using c10::impl::TorchDispatchModeTLS;
using Mode = c10::impl::PyObject_TorchDispatchMode;

struct Followed : Mode {
  Followed(PyObject* mode, State* state) : Mode(mode, getPyInterpreter()), state(state) {}
  State* state;  // of the session that the mode holds; none: all calls go to Python
};

struct WithPython {
  PyGILState_STATE state = PyGILState_Ensure();
  ~WithPython() { PyGILState_Release(state); }
};

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
  if (keys.has_backend(c10::BackendComponent::XLABit)) {  // comes again with tensors of the real device
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
    return;
  }
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
  const auto& kept = at::impl::ThreadLocalPythonObjects::get(kMode);
  State* st = ((Followed*)kept.get())->state;
  if (st && st->predicting && !st->paused) {
    WithPython held;
    if (predict(*st, op, stack)) return;
  }
  c10::impl::ExcludeDispatchKeyGuard once(kKey);
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

// intercept(mode | None, session | None, everything): sends operator calls of this thread that the session does not predict to
// the mode's __torch_dispatch__, or no longer: all calls, or only those that tensors of the xla device lead to (xla.h).
PyObject* mod_intercept(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *mode, *session;
  int everything;
  if (!PyArg_ParseTuple(args, "OOp", &mode, &session, &everything)) return nullptr;
  bool on = mode != Py_None;
  std::shared_ptr<c10::SafePyObject> kept;  // none when off: a thread that ends would need Python, which may be gone, to free it
  if (on) {
    auto object = std::make_shared<Followed>(node_get(mode), session == Py_None ? nullptr : as_session(session)->s);
    kept = std::shared_ptr<c10::SafePyObject>(object, (c10::SafePyObject*)object.get());
  }
  at::impl::ThreadLocalPythonObjects::set(kMode, kept);
  c10::impl::tls_set_dispatch_key_included(kKey, on && everything);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// The mode that operator calls of this thread go to, also in a thread of autograd's; or null.
std::shared_ptr<c10::SafePyObject> following() {
  using Objects = at::impl::ThreadLocalPythonObjects;
  return Objects::contains(kMode) ? Objects::get(kMode) : nullptr;
}

// following(): the same for Python, or None.
PyObject* mod_following(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  auto kept = following();
  return node_get(kept ? kept->ptr(getPyInterpreter()) : Py_None);
  END_HANDLE_TH_ERRORS
}

}  // namespace
