package deploy

import (
	"fmt"
	"strings"
	"testing"
)

// Every selector of a release selects the pods of that release, and of no other: comparing chart and kustomization does not show
// this, because it ignores labels that name a release.
func TestSelectorsSelectThePodsOfTheirRelease(t *testing.T) {
	all := []string{"serviceMonitor.enabled=true"}
	releases := map[string]objects{
		"csi-attacher one":       helm(t, "csi-attacher", "one", "ns", all...),
		"csi-attacher two":       helm(t, "csi-attacher", "two", "ns", all...),
		"csi-mock-driver driver": helm(t, "csi-mock-driver", "driver", "ns", all...),
		"csi-mock-driver second": helm(t, "csi-mock-driver", "second", "ns", all...),
		"base":                   kustomize(t, "base", "monitoring"),
		"overlay":                kustomize(t, "overlays/mock-driver-nodes", "monitoring"),
	}
	for release, rendered := range releases {
		templates := map[string]object{}
		for name, read := range rendered {
			if template := field(read, "spec", "template", "metadata", "labels"); template != nil {
				templates[name] = template
			}
		}
		kinds := map[string]bool{}
		for name, read := range rendered {
			kind := fmt.Sprint(read["kind"])
			selector := selectorOf(kind, read)
			if selector == nil {
				continue
			}
			kinds[kind] = true
			candidates := templates
			switch kind {
			case "Deployment", "DaemonSet":
				candidates = map[string]object{name: templates[name]}
			case "ServiceMonitor":
				candidates = map[string]object{}
				for name, read := range rendered {
					if read["kind"] == "Service" {
						candidates[name] = field(read, "metadata", "labels")
					}
				}
			}
			if len(matching(selector, candidates)) != 1 {
				t.Errorf("%s: %s selects %v by %v", release, name, matching(selector, candidates), selector)
			}
			// Only Helm has several releases in one namespace.
			for other, foreign := range releases {
				if other == release || !strings.Contains(release, " ") || !strings.Contains(other, " ") {
					continue
				}
				for name, read := range foreign {
					labels := field(read, "spec", "template", "metadata", "labels")
					if kind == "ServiceMonitor" && read["kind"] == "Service" {
						labels = field(read, "metadata", "labels")
					}
					if labels != nil && len(matching(selector, map[string]object{name: labels})) > 0 {
						t.Errorf("%s: the %s selects %s of %s", release, kind, name, other)
					}
				}
			}
		}
		for _, kind := range []string{"Deployment", "Service", "ServiceMonitor", "PodDisruptionBudget", "NetworkPolicy"} {
			if !kinds[kind] {
				t.Errorf("%s: no %s has a selector", release, kind)
			}
		}
	}
}

// selectorOf returns the labels by which an object selects others.
func selectorOf(kind string, read object) object {
	switch kind {
	case "Service":
		return field(read, "spec", "selector")
	case "NetworkPolicy":
		return field(read, "spec", "podSelector", "matchLabels")
	}
	return field(read, "spec", "selector", "matchLabels")
}

func matching(selector object, candidates map[string]object) []string {
	var found []string
	for name, labels := range candidates {
		matches := true
		for key, value := range selector {
			matches = matches && labels[key] == value
		}
		if matches {
			found = append(found, name)
		}
	}
	return found
}

// field returns a nested object, or nil.
func field(read object, path ...string) object {
	for _, name := range path {
		read, _ = read[name].(object)
	}
	return read
}
