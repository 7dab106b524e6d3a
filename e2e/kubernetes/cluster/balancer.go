package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const balancerPause = 200 * time.Millisecond

// runBalancer gives Services of type LoadBalancer addresses, as a cloud would: the one that they
// ask for, if it is of the range and free, or the first that is free. What is sent there the nodes'
// kube-proxy takes. It looks again and again rather than watch: there are few Services.
func runBalancer() int {
	flags := pflag.NewFlagSet("balancer", pflag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "who it is to the API server")
	addresses := flags.String("range", "10.66.1.0/24", "the addresses that it gives")
	_ = flags.Parse(os.Args[1:])
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := balance(ctx, *kubeconfig, *addresses); err != nil {
		fmt.Fprintln(os.Stderr, "balancer:", err)
		return 1
	}
	return 0
}

func balance(ctx context.Context, kubeconfig, addresses string) error {
	all, err := netip.ParsePrefix(addresses)
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	for {
		if err := assign(ctx, client, all); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "balancer:", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(balancerPause):
		}
	}
}

// assign gives every Service that has none its address.
func assign(ctx context.Context, client kubernetes.Interface, all netip.Prefix) error {
	services, err := client.CoreV1().Services("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	taken := map[string]bool{}
	var waiting []*corev1.Service
	for i := range services.Items {
		service := &services.Items[i]
		if service.Spec.Type != corev1.ServiceTypeLoadBalancer {
			continue
		}
		given := service.Status.LoadBalancer.Ingress
		if len(given) > 0 && (service.Spec.LoadBalancerIP == "" || service.Spec.LoadBalancerIP == given[0].IP) {
			taken[given[0].IP] = true
		} else {
			waiting = append(waiting, service)
		}
	}
	for _, service := range waiting {
		address := choose(all, service.Spec.LoadBalancerIP, taken)
		if address == "" {
			continue
		}
		service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
		to := client.CoreV1().Services(service.Namespace)
		if _, err := to.UpdateStatus(ctx, service, metav1.UpdateOptions{}); err != nil {
			return err
		}
		taken[address] = true
	}
	return nil
}

// choose answers with the address that is asked for, or with the first; with none if it is taken.
func choose(all netip.Prefix, asked string, taken map[string]bool) string {
	if asked != "" {
		address, err := netip.ParseAddr(asked)
		if err != nil || !all.Contains(address) || taken[asked] {
			return ""
		}
		return asked
	}
	for address := all.Addr().Next(); all.Contains(address); address = address.Next() {
		if !taken[address.String()] {
			return address.String()
		}
	}
	return ""
}
