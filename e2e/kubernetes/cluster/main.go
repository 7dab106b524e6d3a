// Command cluster is a small Kubernetes in one binary: the control plane, its store, the node's
// parts, kubectl and helm, kwok, which plays the kubelets of nodes that do not exist, and a load
// balancer; chosen by the name it is called by (or by its first argument).
//
// One binary because they share nearly all of their code: it links once, and is a tenth of what
// the parts would be one by one. It is built from the modules that the projects publish; nothing
// here is a fake but the nodes that kwok is asked to play.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	helm "helm.sh/helm/v4/pkg/cmd"
	helmkube "helm.sh/helm/v4/pkg/kube"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

const usage = "cluster balancer|etcd|helm|kube-apiserver|kube-controller-manager|kube-proxy|" +
	"kube-scheduler|kubectl|kubelet|kwok"

func main() {
	name := filepath.Base(os.Args[0])
	if name == "cluster" && len(os.Args) > 1 {
		name = os.Args[1]
		os.Args = os.Args[1:]
	}
	var command *cobra.Command
	switch name {
	case "etcd":
		etcdmain.Main(os.Args)
		return
	case "balancer":
		os.Exit(runBalancer())
	case "helm":
		os.Exit(runHelm())
	case "kwok":
		os.Exit(runKwok())
	case "kube-apiserver":
		command = apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		command = controllers.NewControllerManagerCommand()
	case "kube-scheduler":
		command = scheduler.NewSchedulerCommand()
	case "kube-proxy":
		command = proxy.NewProxyCommand()
	case "kubelet":
		command = kubelet.NewKubeletCommand(context.Background())
	case "kubectl":
		command = kubectl.NewDefaultKubectlCommand()
	default:
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	os.Exit(cli.Run(command))
}

// runHelm is what the helm program's own main does.
func runHelm() int {
	helmkube.ManagedFieldsManager = "helm"
	command, err := helm.NewRootCmd(os.Stdout, os.Args[1:], helm.SetupLogging)
	if err == nil {
		err = command.Execute()
	}
	var coded helm.CommandError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &coded):
		return coded.ExitCode
	default:
		return 1
	}
}
