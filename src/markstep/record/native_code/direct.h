#pragma once

// The comparison of a call with the expected one, and its predicted results, on the stack of PyTorch's dispatcher: what
// matching.h does with Python objects, without making any.

#include "matching.h"

namespace {

using Stack = torch::jit::Stack;

// A number as Python would see it, if it has the type `type` there; else null.
PyObject* number_of(const c10::IValue& v, PyObject* type) {
  if (v.isDouble()) return type == (PyObject*)&PyFloat_Type ? PyFloat_FromDouble(v.toDouble()) : nullptr;
  if (v.isBool()) return type == (PyObject*)&PyBool_Type ? PyBool_FromLong(v.toBool()) : nullptr;
  if (v.isInt()) return type == (PyObject*)&PyLong_Type ? PyLong_FromLongLong(v.toInt()) : nullptr;
  return nullptr;
}

bool same_constant(const Item& item, const c10::IValue& v) {
  switch (item.form) {
    case NONE: return v.isNone() || (v.isTensor() && !v.toTensor().defined());
    case BOOL: return v.isBool() && v.toBool() == (item.number != 0);
    case INT: return v.isInt() && v.toInt() == item.number;
    case DOUBLE: {
      if (!v.isDouble()) return false;
      double x = PyFloat_AS_DOUBLE(item.obj), y = v.toDouble();
      return std::memcmp(&x, &y, sizeof x) == 0;
    }
    case STRING: return v.isString() && v.toStringRef() == PyUnicode_AsUTF8(item.obj);
    case DEVICE: return v.isDevice() && v.toDevice() == reinterpret_cast<THPDevice*>(item.obj)->device;
    default: return false;
  }
}

bool is_number(const c10::IValue& v) {
  return v.isTensor() && v.toTensor().defined() && v.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
}

// An operand that was given as a number; a number of the few dtypes that those have, else nothing.
c10::IValue unwrapped(const at::Tensor& t) {
  if (!t.device().is_cpu() || t.dim()) return {};
  switch (t.scalar_type()) {
    case at::kDouble: return *t.const_data_ptr<double>();
    case at::kLong: return *t.const_data_ptr<int64_t>();
    case at::kBool: return *t.const_data_ptr<bool>();
    default: return {};
  }
}

bool match_value(State& st, const std::vector<Item>& items, size_t& at, const c10::IValue& v) {
  if (is_number(v)) {
    auto number = unwrapped(v.toTensor());
    return !number.isNone() && match_value(st, items, at, number);
  }
  const Item& item = items[at++];
  switch (item.kind) {
    case TENSOR:
      return v.isTensor() && v.toTensor().defined() && match_tensor(st, item, v.toTensor());
    case SCALAR: {
      PyObject* number = number_of(v, item.obj);
      if (!number) return false;
      if (!within(number, item.limit)) { Py_DECREF(number); return false; }
      st.scalars.push_back(number);
      return true;
    }
    case LIST: {
      if (!v.isList()) return false;
      auto values = v.toListRef();
      if (values.size() != (size_t)item.a) return false;
      for (const auto& value : values)
        if (!match_value(st, items, at, value)) return false;
      return true;
    }
    case CONST:
      return same_constant(item, v);
    default:
      return false;
  }
}

bool match_call(State& st, Node* n, const c10::IValue* arguments) {
  const auto& schema = (*n->op)->schema().arguments();
  for (auto i : *n->rest)
    if (!(*schema[(size_t)i].default_value() == arguments[i])) return false;
  size_t slots = st.slots.size(), scalars = st.scalars.size(), at = 0;
  bool ok = true;
  for (size_t i = 0; ok && i < n->given->size(); i++) ok = match_value(st, *n->args, at, arguments[(*n->given)[i]]);
  return settle(st, n, ok, slots, scalars);
}

// Tensor `position` of a call, counted over the arguments that it gives.
const at::Tensor* tensor_argument(const Node* n, const c10::IValue* arguments, int32_t position) {
  auto visit = [&](const c10::IValue& v, auto&& self) -> const at::Tensor* {
    if (v.isTensor()) return v.toTensor().defined() && !is_number(v) && position-- == 0 ? &v.toTensor() : nullptr;
    if (v.isList())
      for (const auto& value : v.toListRef())
        if (const at::Tensor* found = self(value, self)) return found;
    return nullptr;
  };
  for (auto i : *n->given)
    if (const at::Tensor* found = visit(arguments[i], visit)) return found;
  return nullptr;
}

at::Tensor make_tensor(State& st, const Node* n, const Item& item, const c10::IValue* arguments) {
  if (item.kind == NEW) return new_handle(st, item);
  return item.kind == VIEW ? view_of(st, item) : *tensor_argument(n, arguments, item.a);
}

// Predicts the call if it is the expected one: its results are on the stack then, in place of its arguments.
bool predict(State& st, const c10::OperatorHandle& op, Stack* stack) {
  if (!default_dtype_fits()) return false;
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  const c10::IValue* arguments = stack->data() + (stack->size() - count);
  bool grad = c10::GradMode::is_enabled();
  Node* n = nullptr;
  for (Node* c : *st.current->children)
    if (*c->op && **c->op == op && c->grad == grad && !c->special && match_call(st, c, arguments)) { n = c; break; }
  if (!n) return false;
  const auto& outs = *n->outs;
  c10::SmallVector<c10::IValue, 4> results;
  for (size_t at = schema.returns().size() > 1; results.size() < schema.returns().size();) {
    const Item& item = outs[at++];
    if (item.kind == LIST) {
      c10::List<at::Tensor> list;
      for (int32_t i = 0; i < item.a; i++) list.push_back(make_tensor(st, n, outs[at++], arguments));
      results.emplace_back(std::move(list));
    } else if (item.kind != CONST) {
      results.emplace_back(make_tensor(st, n, item, arguments));
    } else if (item.form == INT) {
      results.emplace_back(item.number);
    } else {
      results.emplace_back(at::Tensor());
    }
  }
  for (int32_t w : *n->writes) flag(st.slots[(size_t)w]);
  for (int32_t b : *n->bumps) tensor_argument(n, arguments, b)->unsafeGetTensorImpl()->bump_version();
  torch::jit::drop(stack, count);
  for (auto& result : results) stack->push_back(std::move(result));
  return true;
}

}  // namespace
