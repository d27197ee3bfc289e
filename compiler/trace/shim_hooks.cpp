// Lets autograd believe that "cuda" is this process's accelerator, for as long as a trace lasts.
//
// The backward of fake GPU tensors is refused by a CPU build of torch, which asks one object whether
// it was built with CUDA. That object was made when torch was imported, so it is too late to
// register another: its behaviour is replaced in place, and put back afterwards. Neither class has
// any data, so nothing but the table of functions changes.

#include <ATen/detail/CUDAHooksInterface.h>

#include <new>

namespace {

using Plain = at::CUDAHooksInterface;

struct Pretending final : Plain {
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
};

static_assert(sizeof(Pretending) == sizeof(Plain), "the object is replaced in place");

} // namespace

// A trace pretends (on = 1) and stops pretending (on = 0).
extern "C" __attribute__((visibility("default"))) void kernelfarm_pretend_accelerator(int on) {
  auto* hooks = const_cast<Plain*>(&at::detail::getCUDAHooks());
  if (on) {
    new (hooks) Pretending();
  } else {
    new (hooks) Plain();
  }
}
