// Lets autograd believe that "cuda" is this process's accelerator, for as long as a trace lasts.
//
// Without a GPU the backward of fake GPU tensors is refused: torch asks one object about devices and
// contexts. That object was made when torch was imported, so it is too late to register another.
// Its table of functions is swapped instead, and put back afterwards; the classes have no data.

#include <ATen/detail/CUDAHooksInterface.h>

#include <cstring>

namespace {

struct Pretending final : at::CUDAHooksInterface {
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
};

constexpr std::size_t kTable = sizeof(void*);
static_assert(sizeof(Pretending) == kTable, "only the table of functions is swapped");

const Pretending pretending;
unsigned char kept[kTable];
int depth = 0; // the caller holds a lock

void* hooks() {
  return const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks());
}

} // namespace

// A trace pretends (on = 1) and stops pretending (on = 0); calls nest.
extern "C" __attribute__((visibility("default"))) void kernelfarm_pretend_accelerator(int on) {
  if (on && depth++ == 0) {
    std::memcpy(kept, hooks(), kTable);
    std::memcpy(hooks(), &pretending, kTable);
  } else if (!on && --depth == 0) {
    std::memcpy(hooks(), kept, kTable);
  }
}
