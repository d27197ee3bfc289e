// A device guard for a GPU that is not there.
//
// A CPU build of torch has no guard for the device type "cuda", and most operators ask for one even
// when they only compute sizes on fake tensors. This one says that there is a single device with a
// single stream, and does nothing. It owns no memory and launches nothing, so a mistake shows up as
// an error of the missing kernel, never as a wrong number. A guard that exists is left alone.

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstddef>

namespace {

constexpr c10::DeviceType kGpu = c10::DeviceType::CUDA;

c10::Device only_device() {
  return c10::Device(kGpu, 0);
}

c10::Stream only_stream() {
  return c10::Stream(c10::Stream::DEFAULT, only_device());
}

class AbsentGpuGuard final : public c10::impl::NoOpDeviceGuardImpl<kGpu> {
 public:
  // Devices: exactly one, always current.
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Device getDevice() const override { return only_device(); }
  c10::Device exchangeDevice(c10::Device) const override { return only_device(); }
  void synchronizeDevice(const c10::DeviceIndex) const override {}

  // Streams: the default one, never busy.
  c10::Stream getStream(c10::Device) const noexcept override { return only_stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return only_stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return only_stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return only_stream(); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}

  // Events: there is nothing to wait for, so none is ever made.
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag)
      const override {
    *event = nullptr;
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};

const AbsentGpuGuard guard;

} // namespace

// Returns 1 if the guard was installed by this call, 0 if the process had one already.
extern "C" __attribute__((visibility("default"))) int kernelfarm_install_guard() {
  auto& slot = c10::impl::device_guard_impl_registry[static_cast<std::size_t>(kGpu)];
  const c10::impl::DeviceGuardImplInterface* nobody = nullptr;
  return slot.compare_exchange_strong(nobody, &guard) ? 1 : 0;
}
