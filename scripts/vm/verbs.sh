# In the virtual machine: an interface, and a card in software on it.
for module in rdma_rxe ib_uverbs rdma_ucm veth; do modprobe $module; done
# Large enough for the largest packet in RDMA (4096 bytes), so that large messages need fewer packets.
ip link add veth0 mtu 4500 type veth peer name veth1 mtu 4500
ip addr add 10.0.0.1/24 dev veth0
ip link set veth0 up
ip link set veth1 up
rdma link add rxe0 type rxe netdev veth0
node() { IFS=: read -r major minor <"$2" && [ -e "$1" ] || mknod "$1" c "$major" "$minor"; }
mkdir -p /dev/infiniband
for verbs in /sys/class/infiniband_verbs/uverbs*; do node "/dev/infiniband/$(basename "$verbs")" "$verbs/dev"; done
node /dev/infiniband/rdma_cm /sys/class/misc/rdma_cm/dev
