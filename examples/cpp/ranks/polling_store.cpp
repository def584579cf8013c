#include "polling_store.h"

#include <c10/util/Exception.h>

#include <thread>

namespace ranks {

namespace {

constexpr std::chrono::milliseconds kPause{5};

}  // namespace

PatientStore::PatientStore(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds timeout)
    : Store(timeout),
      store_(std::move(store)) {}

c10::intrusive_ptr<c10d::Store> PatientStore::clone() {
  return c10::make_intrusive<PatientStore>(store_->clone(), timeout_);
}

void PatientStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  store_->set(key, value);
}

std::vector<uint8_t> PatientStore::compareSet(
    const std::string& key,
    const std::vector<uint8_t>& current,
    const std::vector<uint8_t>& desired) {
  return store_->compareSet(key, current, desired);
}

std::vector<uint8_t> PatientStore::get(const std::string& key) {
  wait({key});
  return store_->get(key);
}

int64_t PatientStore::add(const std::string& key, int64_t value) {
  return store_->add(key, value);
}

bool PatientStore::deleteKey(const std::string& key) {
  return store_->deleteKey(key);
}

bool PatientStore::check(const std::vector<std::string>& keys) {
  return store_->check(keys);
}

int64_t PatientStore::getNumKeys() {
  return store_->getNumKeys();
}

void PatientStore::wait(const std::vector<std::string>& keys) {
  wait(keys, timeout_);
}

void PatientStore::wait(
    const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  while (!store_->check(keys)) {
    if (std::chrono::steady_clock::now() >= until) {
      C10_THROW_ERROR(
          DistStoreError,
          "not in the store within " + std::to_string(timeout.count()) + " ms: " + keys.front());
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace ranks
