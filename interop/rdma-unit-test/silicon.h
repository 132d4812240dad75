// traffic/rnr_nack_test.cc uses a flag that the published suite does not define. It says whether
// the device is as fast as hardware, and so how long the test waits for a packet.

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"

ABSL_FLAG(bool, silicon, true, "Whether the device is as fast as hardware.");
