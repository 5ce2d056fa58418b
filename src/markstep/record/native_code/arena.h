#pragma once

// Memory for the CPU tensors of a training that does the same over and over.
//
// The C library returns large blocks to the system when they are freed and gets them back, page by page and filled with
// zeros, in the next step; medium ones leave its heap in pieces. The arena keeps what was freed and gives it out again:
// the smallest free block that is large enough, joined with its free neighbours. It asks the system for huge pages.
//
// Blocks smaller than kSmallest, and those of more than half of the machine's memory, stay with PyTorch's own allocator.
// Medium and large blocks live in ranges of their own, so that a small one that stays does not split the room of a large one.

#include "common.h"

#include <c10/core/CPUAllocator.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <set>

namespace {

constexpr size_t kSmallest = 256 << 10;
constexpr size_t kLarge = 1 << 20;
constexpr size_t kGrain = 256;  // sizes are multiples: aligned for vectors, and not all on the same place of a page
constexpr size_t kHugePage = 2 << 20;

class Range {
 public:
  // With `lazy`, freed blocks wait for somebody who asks for the same size, which is quicker, and are joined when nothing fits.
  explicit Range(bool lazy) : lazy_(lazy) {}

  // Reserves addresses, no memory. False when the system does not grant them.
  bool reserve(size_t bytes) {
    void* start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return false;
    madvise(start, bytes, MADV_HUGEPAGE);
    start_ = reinterpret_cast<uintptr_t>(start);
    end_ = start_ + bytes;
    top_ = (start_ + kHugePage - 1) / kHugePage * kHugePage;
    return true;
  }

  bool holds(const void* p) const { return reinterpret_cast<uintptr_t>(p) - start_ < end_ - start_; }

  // Null when the range is full.
  void* take(size_t bytes) {
    bytes = (bytes + kGrain - 1) / kGrain * kGrain;
    in_use_ += bytes;
    auto same = waiting_ ? recent_.find(bytes) : recent_.end();
    if (same != recent_.end() && !same->second.empty()) {
      uintptr_t at = same->second.back();
      same->second.pop_back();
      waiting_ -= bytes;
      return reinterpret_cast<void*>(at);
    }
    void* p = fit(bytes);
    if (!p) in_use_ -= bytes;
    return p;
  }

  size_t give_back(void* p) {
    uintptr_t at = reinterpret_cast<uintptr_t>(p);
    size_t bytes = used_.find(at)->second;
    in_use_ -= bytes;
    if (lazy_) {
      waiting_ += bytes;
      recent_[bytes].push_back(at);
    } else {
      used_.erase(at);
      join(at, bytes);
    }
    return bytes;
  }

  // Returns the memory of free blocks to the system; the addresses stay.
  void trim() {
    join_recent();
    for (auto [at, size] : free_) {
      uintptr_t from = (at + kHugePage - 1) / kHugePage * kHugePage, to = (at + size) / kHugePage * kHugePage;
      if (from < to) madvise(reinterpret_cast<void*>(from), to - from, MADV_DONTNEED);
    }
  }

  size_t in_use() const { return in_use_; }
  size_t extent() const { return top_ - start_; }

 private:
  void* fit(size_t bytes) {
    auto fit = by_size_.lower_bound({bytes, 0});
    if (fit == by_size_.end() && waiting_) {
      join_recent();
      fit = by_size_.lower_bound({bytes, 0});
    }
    uintptr_t at;
    if (fit != by_size_.end()) {
      auto [size, where] = *fit;
      forget(where, size);
      if (size > bytes) remember(where + bytes, size - bytes);
      at = where;
    } else {
      at = top_;
      auto last = free_.empty() ? free_.end() : std::prev(free_.end());
      if (last != free_.end() && last->first + last->second == top_) {  // too small, but it can grow
        at = last->first;
        if (end_ - at < bytes) return nullptr;
        forget(last->first, last->second);
      } else if (end_ - top_ < bytes) {
        return nullptr;
      }
      top_ = at + bytes;
    }
    used_[at] = bytes;
    return reinterpret_cast<void*>(at);
  }

  void join_recent() {
    for (auto& [bytes, blocks] : recent_)
      for (uintptr_t at : blocks) {
        used_.erase(at);
        join(at, bytes);
      }
    recent_.clear();
    waiting_ = 0;
  }

  void join(uintptr_t at, size_t size) {
    auto next = free_.lower_bound(at);
    if (next != free_.end() && next->first == at + size) {
      size += next->second;
      forget(next->first, next->second);
    }
    auto before = free_.lower_bound(at);
    if (before != free_.begin()) {
      --before;
      if (before->first + before->second == at) {
        at = before->first;
        size += before->second;
        forget(before->first, before->second);
      }
    }
    remember(at, size);
  }

  void remember(uintptr_t at, size_t size) {
    free_[at] = size;
    by_size_.insert({size, at});
  }
  void forget(uintptr_t at, size_t size) {
    by_size_.erase({size, at});
    free_.erase(at);
  }

  bool lazy_;
  uintptr_t start_ = 0, end_ = 0, top_ = 0;
  size_t in_use_ = 0, waiting_ = 0;
  std::unordered_map<uintptr_t, size_t> used_;  // size of every block given out, and of every one in recent_
  std::unordered_map<size_t, std::vector<uintptr_t>> recent_;  // freed and not joined yet, by size
  std::map<uintptr_t, size_t> free_;
  std::set<std::pair<size_t, uintptr_t>> by_size_;
};

class Arena : public c10::Allocator {
 public:
  explicit Arena(c10::Allocator* rest) : rest_(rest) {}

  // False when there are no addresses to be had, or they are limited.
  bool reserve() {
    size_t memory = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
    largest_ = memory / 2;
    return medium_.reserve(2 * memory) && large_.reserve(2 * memory);
  }

  c10::DataPtr allocate(size_t bytes) override {
    void* p = nullptr;
    // What may be too much is left to PyTorch's allocator, which raises an error; addresses alone are no memory.
    if (bytes >= kSmallest && bytes <= largest_ && !off_) {
      std::lock_guard<std::mutex> held(lock_);
      p = (bytes < kLarge ? medium_ : large_).take(bytes);
    }
    if (!p) return rest_->allocate(bytes);
    report(p, static_cast<int64_t>(bytes));
    return {p, p, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  static void release(void* p);
  static void report(void* p, int64_t bytes) {
    c10::reportMemoryUsageToProfiler(p, bytes, 0, 0, c10::Device(c10::DeviceType::CPU));
  }

  void trim() {
    std::lock_guard<std::mutex> held(lock_);
    medium_.trim();
    large_.trim();
  }

  std::mutex lock_;
  std::atomic<bool> off_{false};
  size_t largest_ = 0;
  Range medium_{true}, large_{false};
  c10::Allocator* rest_;
};

Arena* g_arena = nullptr;

void Arena::release(void* p) {
  if (!p) return;
  Arena& arena = *g_arena;
  Range* range = arena.medium_.holds(p) ? &arena.medium_ : arena.large_.holds(p) ? &arena.large_ : nullptr;
  if (!range) return arena.rest_->raw_deallocate(p);
  size_t bytes;
  {
    std::lock_guard<std::mutex> held(arena.lock_);
    bytes = range->give_back(p);
  }
  Arena::report(p, -static_cast<int64_t>(bytes));
}

// arena(on): may tensors come from the arena? Answers whether they do.
PyObject* mod_arena(PyObject*, PyObject* on) {
  HANDLE_TH_ERRORS
  bool wanted = PyObject_IsTrue(on);
  if (!g_arena && wanted) {
    auto made = std::make_unique<Arena>(c10::GetCPUAllocator());
    if (!made->reserve()) Py_RETURN_FALSE;
    g_arena = made.release();  // for good: tensors may outlive everything
    pthread_atfork([] { g_arena->lock_.lock(); }, [] { g_arena->lock_.unlock(); }, [] { g_arena->lock_.unlock(); });
    c10::SetCPUAllocator(g_arena);
  }
  if (g_arena) g_arena->off_ = !wanted;
  return PyBool_FromLong(wanted);
  END_HANDLE_TH_ERRORS
}

// arena_trim(): memory that no tensor has goes back to the system.
PyObject* mod_arena_trim(PyObject*, PyObject*) {
  if (g_arena) g_arena->trim();
  Py_RETURN_NONE;
}

// arena_bytes(): what tensors have of the arena, and how far it extends.
PyObject* mod_arena_bytes(PyObject*, PyObject*) {
  size_t used = 0, extent = 0;
  if (g_arena) {
    std::lock_guard<std::mutex> held(g_arena->lock_);
    used = g_arena->medium_.in_use() + g_arena->large_.in_use();
    extent = g_arena->medium_.extent() + g_arena->large_.extent();
  }
  return Py_BuildValue("nn", static_cast<Py_ssize_t>(used), static_cast<Py_ssize_t>(extent));
}

}  // namespace
