package deploy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// The component must change every path, and nothing else.
func TestKubeletDirectoryIsReplacedEverywhere(t *testing.T) {
	text := kustomizeText(t, "overlays/mock-driver-nodes")
	if strings.Count(text, "/var/lib/kubelet") < 5 {
		t.Fatalf("the overlay hardly mentions kubelet's directory:\n%s", text)
	}
	expected := parse(t, strings.ReplaceAll(text, "/var/lib/kubelet", "/var/lib/k0s/kubelet"))
	found := kustomize(t, "overlays/mock-driver-nodes", "kubelet-directory")
	found.checkFields(t)
	expectSame(t, found, expected)
}

// The attacher authenticates the clients of its port, kubelet probes another one, and nothing else changes.
func TestAuthenticatedMetricsServeHealthOnAnotherPort(t *testing.T) {
	built := kustomize(t, "overlays/mock-driver", "monitoring", "authenticated-metrics")
	built.checkFields(t)
	attacher := container(t, built, "csi-attacher")
	args := attacher["args"].([]any)
	base := container(t, kustomize(t, "base"), "csi-attacher")["args"].([]any)
	added := slices.DeleteFunc(slices.Clone(args), func(arg any) bool { return slices.Contains(base, arg) })
	if len(args) != len(base)+len(added) || !slices.Equal(added, []any{"--http-auth", "--health-endpoint=:8082"}) {
		t.Errorf("the base's arguments are %v, the component's %v", base, args)
	}
	ports := map[string]string{}
	for _, port := range attacher["ports"].([]any) {
		ports[fmt.Sprint(port.(object)["name"])] = fmt.Sprint(port.(object)["containerPort"])
	}
	if !maps.Equal(ports, map[string]string{"http": "8080", "health": "8082"}) {
		t.Errorf("the attacher has the ports %v", ports)
	}
	for _, probe := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
		if asked := attacher[probe].(object)["httpGet"].(object); asked["port"] != "health" || asked["scheme"] != nil {
			t.Errorf("%s is %v", probe, asked)
		}
	}
	monitor := built["ServiceMonitor csi-mock-driver/csi-attacher"]["spec"].(object)["endpoints"].([]any)[0].(object)
	if monitor["scheme"] != "https" || monitor["path"] != "/metrics" || monitor["bearerTokenFile"] == nil {
		t.Errorf("the ServiceMonitor's endpoint is %v", monitor)
	}
}

// Prometheus does not need the page that shows names of volumes and nodes.
func TestReadersOfMetricsAndStatusHaveRolesOfTheirOwn(t *testing.T) {
	for source, built := range map[string]objects{
		"component": kustomize(t, "base", "authenticated-metrics"),
		"chart":     helm(t, "csi-attacher", "csi-attacher", "csi-attacher", "metrics.authentication.enabled=true"),
	} {
		for role, path := range map[string]string{"metrics-reader": "/metrics", "statusz-reader": "/statusz"} {
			rules := fmt.Sprint(built["ClusterRole /csi-attacher-"+role]["rules"])
			if expected := fmt.Sprintf("[map[nonResourceURLs:[%s] verbs:[get]]]", path); rules != expected {
				t.Errorf("%s of the %s allows %s", role, source, rules)
			}
		}
	}
}

// The bound is the driver's own --worker-threads, which the Go sidecar has for all calls together.
func TestExistingDriverKeepsItsBoundOfCalls(t *testing.T) {
	args := container(t, kustomize(t, "overlays/existing-driver"), "csi-attacher")["args"].([]any)
	workers := slices.IndexFunc(args, func(arg any) bool { return strings.HasPrefix(fmt.Sprint(arg), "--worker-threads=") })
	if workers < 0 {
		t.Fatalf("the driver has no --worker-threads: %v", args)
	}
	_, bound, _ := strings.Cut(fmt.Sprint(args[workers]), "=")
	if !slices.Contains(args, any("--max-driver-calls="+bound)) {
		t.Errorf("the attacher may make more than %s calls at once: %v", bound, args)
	}
}

// container returns a container of the attacher's Deployment.
func container(t *testing.T, built objects, name string) object {
	t.Helper()
	for key, read := range built {
		if !strings.HasPrefix(key, "Deployment ") {
			continue
		}
		template := read["spec"].(object)["template"].(object)
		for _, found := range template["spec"].(object)["containers"].([]any) {
			if found.(object)["name"] == name {
				return found.(object)
			}
		}
	}
	t.Fatalf("no Deployment has a container %s", name)
	return nil
}

// The objects that charts and kustomize make differ in kind; this compares kustomizations with the API's own types.
func TestKustomizationsHaveNoUnknownFields(t *testing.T) {
	for _, kustomization := range []string{
		"base", "overlays/existing-driver", "overlays/mock-driver", "overlays/mock-driver-nodes",
		"overlays/mock-driver-snapshots", "overlays/mock-driver-group-snapshots",
		"overlays/mock-driver-snapshot-metadata",
	} {
		parse(t, kustomizeText(t, kustomization)).checkFields(t)
	}
	for _, component := range []string{"authenticated-metrics", "explain", "finalizers-only", "go-sidecar", "monitoring", "openshift", "publish-secrets"} {
		kustomize(t, "base", component).checkFields(t)
	}
}
