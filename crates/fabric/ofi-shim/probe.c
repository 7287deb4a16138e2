/* Compiles where libfabric's headers are. */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
_Static_assert(FI_MAJOR_VERSION > 1 || FI_MINOR_VERSION >= 9, "libfabric before 1.9");
