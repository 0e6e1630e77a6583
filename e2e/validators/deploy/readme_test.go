package deploy

import (
	"fmt"
	"strings"
	"testing"
)

// The overlays that deploy/README.md shows, built from its text.
func TestOverlaysOfTheReadmeBuild(t *testing.T) {
	var overlays, patches []string
	for _, block := range strings.Split(readFile(t, "deploy/README.md"), "```yaml\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		switch {
		case strings.Contains(block, "kind: Kustomization"):
			overlays = append(overlays, block)
		case strings.HasPrefix(block, "patches:"):
			patches = append(patches, block)
		}
	}
	if len(overlays) != 1 || len(patches) != 1 {
		t.Fatalf("the README shows %d overlays and %d patches", len(overlays), len(patches))
	}

	images := map[string]bool{}
	for _, read := range parse(t, build(t, overlays[0])) {
		collectImages(read, images)
	}
	for _, image := range []string{"csi-attacher", "csi-mock-driver", "csi-mock-driver-node"} {
		if !images["your.registry/"+image+":0.1.0"] {
			t.Errorf("the overlay does not set the registry of %s: %v", image, images)
		}
	}

	base := "resources: [path/to/deploy/base]\ncomponents: [path/to/deploy/components/monitoring]\n"
	monitor := parse(t, build(t, base+patches[0]))["ServiceMonitor csi-attacher/csi-attacher"]
	if label := monitor["metadata"].(object)["labels"].(object)["release"]; label != "kube-prometheus-stack" {
		t.Errorf("the patch sets the label to %v", label)
	}
}

func collectImages(value any, images map[string]bool) {
	switch value := value.(type) {
	case object:
		if image, ok := value["image"]; ok {
			images[fmt.Sprint(image)] = true
		}
		for _, field := range value {
			collectImages(field, images)
		}
	case []any:
		for _, item := range value {
			collectImages(item, images)
		}
	}
}
