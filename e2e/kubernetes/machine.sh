#!/bin/bash
# machine.sh STATE NODES CGROUP [large]: a whole Kubernetes cluster, as process 1 of namespaces of
# its own (unshare --pid --mount --ipc --net --fork --kill-child --mount-proc). When it ends, the kernel
# ends every process, mount and network namespace of the cluster: nothing else has to clean up.
# This network namespace is the control plane's (10.66.0.1); each node has one (10.66.0.1N).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
state=$1 nodes=$2 cgroup=$3 size=${4:-}

# /mnt is the state directory whatever a node puts over the rest of its file tree.
mount --bind "$state" /mnt
mount -t tmpfs tmpfs /run
mkdir -p /run/scripts && mount --bind "$here" /run/scripts
export PATH=/mnt/bin:/usr/sbin:/usr/bin:/sbin:/bin
log=/mnt/log pki=/mnt/pki cfg=/mnt/cfg
admin="kubectl --kubeconfig $cfg/admin.kubeconfig"
mkdir -p $log /mnt/etcd
chmod 700 /mnt/etcd

ip link set lo up
ip link add br0 type bridge
ip addr add 10.66.0.1/24 dev br0
ip link set br0 up
sysctl -qw net.ipv4.ip_forward=1
for i in $(seq "$nodes"); do
  ip netns add "n$i"
  ip -n "n$i" link set lo up
  ip link add "n$i" type veth peer name eth0 netns "n$i"
  ip link set "n$i" master br0 up
  ip -n "n$i" addr add "10.66.0.1$i/24" dev eth0
  ip -n "n$i" link set eth0 up
  ip -n "n$i" route add default via 10.66.0.1
  ip route add "10.244.$i.0/24" via "10.66.0.1$i"
  for j in $(seq "$nodes"); do
    [ "$i" = "$j" ] || ip -n "n$i" route add "10.244.$j.0/24" via "10.66.0.1$j"
  done
done

# Addresses of the load balancer: any node takes what is sent there.
ip route add 10.66.1.0/24 via 10.66.0.11

etcd --name cp --data-dir /mnt/etcd --unsafe-no-fsync \
  --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
  --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
  --initial-cluster cp=http://127.0.0.1:2380 \
  --auto-compaction-mode=periodic --auto-compaction-retention=10m > $log/etcd.log 2>&1 &

# A thousand nodes share two processors with it: its collections of garbage would come every seven
# seconds and keep one of them for a second. It collects when its share of the memory is full.
collection=()
if [ "$size" = large ]; then
  memory=$(awk '/^MemTotal/ {print int($2 * 2 / 5)}' /proc/meminfo)
  collection=(env GOGC=off "GOMEMLIMIT=${memory}KiB")
fi
"${collection[@]}" kube-apiserver \
  --etcd-servers=http://127.0.0.1:2379 --service-cluster-ip-range=10.96.0.0/16 \
  --advertise-address=10.66.0.1 --bind-address=0.0.0.0 --secure-port=6443 \
  --tls-cert-file=$pki/apiserver.crt --tls-private-key-file=$pki/apiserver.key \
  --client-ca-file=$pki/ca.crt --kubelet-certificate-authority=$pki/ca.crt \
  --kubelet-client-certificate=$pki/kubelet-client.crt \
  --kubelet-client-key=$pki/kubelet-client.key \
  --kubelet-preferred-address-types=InternalIP \
  --service-account-issuer=https://kubernetes.default.svc.cluster.local \
  --service-account-key-file=$pki/sa.pub --service-account-signing-key-file=$pki/sa.key \
  --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
  --allow-privileged=true --endpoint-reconciler-type=lease --enable-aggregator-routing=true \
  > $log/apiserver.log 2>&1 &

# The controller manager and the scheduler exit for good if RBAC's first roles are not there yet.
for _ in $(seq 600); do $admin get --raw /readyz > /dev/null 2>&1 && break; sleep 0.2; done

# Endpoints are written for old clients alone: nothing here reads them, and they would be the third
# write of each change of a pod.
# The grace is longer than a test's absence of the API server: with the usual 50 s Kubernetes itself
# takes every pod of every node for lost when the server comes back, mesh or no mesh.
kube-controller-manager --kubeconfig=$cfg/controllers.kubeconfig \
  --authentication-kubeconfig=$cfg/controllers.kubeconfig \
  --authorization-kubeconfig=$cfg/controllers.kubeconfig \
  --leader-elect=false --use-service-account-credentials=true --root-ca-file=$pki/ca.crt \
  --controllers='*,-endpoints-controller,-endpointslice-mirroring-controller' \
  --service-account-private-key-file=$pki/sa.key \
  --cluster-signing-cert-file=$pki/ca.crt --cluster-signing-key-file=$pki/ca.key \
  --bind-address=127.0.0.1 --allocate-node-cidrs=false --kube-api-qps=300 --kube-api-burst=600 \
  --node-monitor-period=2s --node-monitor-grace-period=120s > $log/controllers.log 2>&1 &

kube-scheduler --kubeconfig=$cfg/scheduler.kubeconfig \
  --authentication-kubeconfig=$cfg/scheduler.kubeconfig \
  --authorization-kubeconfig=$cfg/scheduler.kubeconfig \
  --leader-elect=false --bind-address=127.0.0.1 --kube-api-qps=300 --kube-api-burst=600 \
  > $log/scheduler.log 2>&1 &

balancer --kubeconfig=$cfg/admin.kubeconfig > $log/balancer.log 2>&1 &

$admin create clusterrolebinding kube-proxy --clusterrole=system:node-proxier \
  --user=system:kube-proxy > /dev/null 2>&1 || true

# nsenter, not ip netns exec, which would mount another /sys.
for i in $(seq "$nodes"); do
  nsenter --net="/run/netns/n$i" \
    unshare --pid --mount --uts --ipc --fork --kill-child --mount-proc \
    bash /run/scripts/node.sh "$i" "$cgroup-n$i" > "$log/n$i.log" 2>&1 &
done
while :; do wait -n 2> /dev/null || sleep 1; done
