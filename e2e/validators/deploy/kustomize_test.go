package deploy

import (
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

// The objects that charts and kustomize make differ in kind; this compares kustomizations with the API's own types.
func TestKustomizationsHaveNoUnknownFields(t *testing.T) {
	for _, kustomization := range []string{
		"base", "overlays/existing-driver", "overlays/mock-driver", "overlays/mock-driver-nodes",
		"overlays/mock-driver-snapshots", "overlays/mock-driver-group-snapshots",
		"overlays/mock-driver-snapshot-metadata",
	} {
		parse(t, kustomizeText(t, kustomization)).checkFields(t)
	}
	for _, component := range []string{"control-plane-nodes", "critical-priority", "explain", "go-sidecar", "monitoring", "network-policy", "publish-secrets"} {
		kustomize(t, "base", component).checkFields(t)
	}
}
