// Package conformance runs the Gateway API's own conformance suite against a mesh with waypoints.
//
// The suite knows meshes whose routes work as soon as a namespace is in the mesh. Here a namespace
// also names its waypoint, which is made between the suite's base objects and its first test.
package conformance

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/conformance"
	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/yaml"
)

const (
	waypoint     = "waypoint"
	useWaypoint  = "istio.io/use-waypoint"
	waypointFor  = "istio.io/waypoint-for"
	hbonePort    = 15008
	readyTimeout = 2 * time.Minute
)

var waypointClass = flag.String("waypoint-class", "",
	"class of the waypoints of the mesh's namespaces; none without it")

var only = flag.String("only", "", "names of tests, with commas; all that are for it without them")

func TestConformance(t *testing.T) {
	options := conformance.DefaultOptions(t)
	runner, err := suite.NewConformanceTestSuite(options)
	require.NoError(t, err, "make the suite")
	if options.ReportOutputPath != "" {
		t.Cleanup(func() {
			report, err := runner.Report()
			require.NoError(t, err, "make the report")
			text, err := yaml.Marshal(report)
			require.NoError(t, err, "write the report as YAML")
			require.NoError(t, os.WriteFile(options.ReportOutputPath, text, 0o644))
		})
	}
	chosen := tests.ConformanceTests
	if *only != "" {
		names := strings.Split(*only, ",")
		chosen = slices.DeleteFunc(slices.Clone(chosen), func(test suite.ConformanceTest) bool {
			return !slices.Contains(names, test.ShortName)
		})
		require.Len(t, chosen, len(names), "tests that are there")
	}
	runner.Setup(t, chosen)
	if *waypointClass != "" {
		for _, namespace := range []string{suite.MeshNamespace, suite.MeshConsumerNamespace} {
			makeWaypoint(t, options.Client, namespace)
		}
	}
	require.NoError(t, runner.Run(t, chosen), "run the suite")
}

// makeWaypoint makes a namespace's waypoint, waits for it, and sends the namespace's traffic to it.
func makeWaypoint(t *testing.T, cluster client.Client, namespace string) {
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	gateway := &gatewayv1.Gateway{
		ObjectMeta: metav1.ObjectMeta{
			Name:      waypoint,
			Namespace: namespace,
			Labels:    map[string]string{waypointFor: "all"},
		},
		Spec: gatewayv1.GatewaySpec{
			GatewayClassName: gatewayv1.ObjectName(*waypointClass),
			Listeners: []gatewayv1.Listener{
				{Name: "mesh", Port: hbonePort, Protocol: "HBONE"},
			},
		},
	}
	require.NoError(t, client.IgnoreAlreadyExists(cluster.Create(ctx, gateway)), "make a Gateway")
	require.NoError(t, programmed(ctx, cluster, client.ObjectKeyFromObject(gateway)))
	var labelled corev1.Namespace
	require.NoError(t, cluster.Get(ctx, client.ObjectKey{Name: namespace}, &labelled))
	before := client.MergeFrom(labelled.DeepCopy())
	labelled.Labels[useWaypoint] = waypoint
	require.NoError(t, cluster.Patch(ctx, &labelled, before), "label %s", namespace)
}

// programmed waits until a Gateway has an address and a pod that serves it.
func programmed(ctx context.Context, cluster client.Client, name client.ObjectKey) error {
	for {
		var gateway gatewayv1.Gateway
		if err := cluster.Get(ctx, name, &gateway); err != nil {
			return fmt.Errorf("get %s: %w", name, err)
		}
		condition := string(gatewayv1.GatewayConditionProgrammed)
		if meta.IsStatusConditionTrue(gateway.Status.Conditions, condition) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not programmed: %v", name, gateway.Status.Conditions)
		case <-time.After(time.Second / 4):
		}
	}
}
