#!/bin/bash
# node.sh N CGROUP: node nN of the cluster, as process 1 of its own PID, mount, UTS and network namespace.
# It sees the machine's files and writes to copies of its own, so that what a DaemonSet leaves on
# "the host" is the node's alone and goes with it.
set -eu
n=n$1 cgroup=$2 ip=10.66.0.1$1 cidr=10.244.$1.0/24
node=/mnt/$n log=/mnt/log pki=/mnt/pki cfg=/mnt/cfg
hostname "$n"

for tree in etc opt usr/lib/cni var; do
  upper=$node/tree/${tree//\//-}
  mkdir -p "$upper" "$upper.work"
  mount -t overlay overlay -o "lowerdir=/$tree,upperdir=$upper,workdir=$upper.work" "/$tree"
done
mount -t tmpfs tmpfs /run
mkdir -p /run/netns /run/containerd /etc/cni/net.d /opt/cni/bin /var/lib/kubelet \
  /var/log/pods /var/log/containers "$node/containerd" "$node/kubelet" "$node/pods"
mount --bind "$node/kubelet" /var/lib/kubelet
mount --bind "$node/pods" /var/log/pods
cp /usr/lib/cni/{bridge,host-local,loopback} /opt/cni/bin/
mount --make-rshared /

# The kubelet writes these, which are the whole machine's, and fails where it cannot.
for setting in vm/overcommit_memory:1 kernel/panic:10 kernel/panic_on_oops:1; do
  file=$node/${setting//[\/:]/_}
  echo "${setting#*:}" > "$file"
  mount --bind "$file" "/proc/sys/${setting%:*}"
done
sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0
sysctl -qw net.bridge.bridge-nf-call-iptables=1 || echo "no bridge netfilter on this machine"

# Pods get cgroups of their own below one for the node.
if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
  mkdir -p "/sys/fs/cgroup/$cgroup"
else
  for controller in cpu cpuacct cpuset memory devices freezer blkio pids systemd; do
    [ ! -d /sys/fs/cgroup/$controller ] || mkdir -p "/sys/fs/cgroup/$controller/$cgroup"
  done
  for file in cpus mems; do
    cat "/sys/fs/cgroup/cpuset/cpuset.$file" > "/sys/fs/cgroup/cpuset/$cgroup/cpuset.$file"
  done
fi

# Without CAP_SYS_RESOURCE, which test machines may lack, no oom_score_adj can be lowered.
cat > "$node/containerd.toml" << Y
version = 2
root = "$node/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.local/pause:1"
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  restrict_oom_score_adj = true
  disable_apparmor = true
  enable_selinux = false
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
Y
cat > /etc/cni/net.d/10-bridge.conflist << Y
{"cniVersion":"0.4.0","name":"bridge","plugins":[
 {"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":false,"hairpinMode":true,"mtu":1500,
  "ipam":{"type":"host-local","ranges":[[{"subnet":"$cidr"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}
Y
printf 'nameserver 10.96.0.10\n' > "$node/resolv.conf"
cat > "$node/kubelet.yaml" << Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failSwapOn: false
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupsPerQOS: true
cgroupRoot: /$cgroup
enforceNodeAllocatable: []
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
address: $ip
port: 10250
healthzBindAddress: 127.0.0.1
tlsCertFile: $pki/$n.crt
tlsPrivateKeyFile: $pki/$n.key
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $pki/ca.crt}}
authorization: {mode: Webhook}
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
resolvConf: $node/resolv.conf
podLogsDir: /var/log/pods
maxPods: 110
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: "200Mi", nodefs.available: "1%", imagefs.available: "1%", nodefs.inodesFree: "1%"}
nodeStatusUpdateFrequency: 5s
syncFrequency: 10s
oomScoreAdj: 0
localStorageCapacityIsolation: false
Y
cat > "$node/proxy.yaml" << Y
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: ${PROXY_MODE:-iptables}
clusterCIDR: 10.244.0.0/16
hostnameOverride: $n
bindAddress: $ip
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
clientConnection: {kubeconfig: $cfg/proxy.kubeconfig}
oomScoreAdj: 0
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
Y

containerd -c "$node/containerd.toml" > "$log/$n-containerd.log" 2>&1 &
for _ in $(seq 200); do
  ctr -a /run/containerd/containerd.sock version > /dev/null 2>&1 && break
  sleep 0.1
done
for archive in /mnt/img/*.tar; do
  ctr -a /run/containerd/containerd.sock -n k8s.io images import "$archive" \
    || echo "cannot import $archive"
done
kubelet --config="$node/kubelet.yaml" --kubeconfig="$cfg/$n.kubeconfig" \
  --root-dir=/var/lib/kubelet --hostname-override="$n" --node-ip="$ip" \
  > "$log/$n-kubelet.log" 2>&1 &
kube-proxy --config="$node/proxy.yaml" > "$log/$n-proxy.log" 2>&1 &
while :; do wait -n 2> /dev/null || sleep 1; done
