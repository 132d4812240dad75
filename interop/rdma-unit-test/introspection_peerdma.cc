// Describes peerdma's device to google/rdma-unit-test, by the rules of its README: what the device
// can do, not which tests to leave out. The suite's sources are unchanged, so its main() does not
// know of this file.

#include <string>

#include "internal/introspection_registrar.h"
#include "public/introspection.h"

namespace rdma_unit_test {
namespace {

class IntrospectionPeerdma : public NicIntrospection {
 public:
  using NicIntrospection::NicIntrospection;

  // ibv_rereg_mr works.
  bool SupportsReRegMr() const override { return true; }

  // It is software, like rxe: a test with one number of rounds for hardware and another for
  // software uses the latter.
  bool IsSlowNic() const override { return true; }
};

const bool registered = [] {
  IntrospectionRegistrar::GetInstance().Register(
      "peerdma", [](const std::string& name, const ibv_device_attr& attr) {
        return new IntrospectionPeerdma(name, attr);
      });
  return true;
}();

}  // namespace
}  // namespace rdma_unit_test
