// PatientStore: a store that is asked whether a key is there, again and again, where c10d's would
// be told to wait.
//
// A TCPStore whose time is over writes a warning for which it looks up the names of both ends of
// its connection: on a machine whose name server does not answer, that is seconds after the time.
// Gloo waits in a store for the addresses of its peers; with this one it knows on time, and without
// a word.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace ranks {

class PatientStore final : public c10d::Store {
 public:
  PatientStore(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds timeout);

  using c10d::Store::compareSet;
  using c10d::Store::set;
  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(
      const std::string& key,
      const std::vector<uint8_t>& current,
      const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  // c10::DistStoreError: they are not all there in time.
  void wait(
      const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  bool hasExtendedApi() const override { return false; }  // its multiGet would wait in its own way

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace ranks
