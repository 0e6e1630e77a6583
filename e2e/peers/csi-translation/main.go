// Command csi-translation prints what Kubernetes' own library makes of in-tree volumes, so that another
// translation can be compared with it.
//
// It reads questions from stdin, one JSON object a line, and answers each with one line of JSON:
//
//	{"translate": <PersistentVolume>}                             what the volume is to its CSI driver
//	{"translateInline": {"volume": <Volume>, "namespace": …}}     what the volume of a pod is to its CSI driver
//	{"repair": {"driver": …, "handle": …, "nodeId": …}}           the handle with what it leaves open filled in
//	{"isMigrationDriver": <name>}                                 whether the driver took over from a plugin
//	{"finalizer": <name>}                                         the finalizer of the Go sidecar for the driver
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/kubernetes-csi/external-attacher/v4/pkg/controller"
	v1 "k8s.io/api/core/v1"
	translation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
)

type question struct {
	Translate         *v1.PersistentVolume `json:"translate"`
	TranslateInline   *inline              `json:"translateInline"`
	Repair            *repair              `json:"repair"`
	IsMigrationDriver *string              `json:"isMigrationDriver"`
	Finalizer         *string              `json:"finalizer"`
}

type inline struct {
	Volume    *v1.Volume `json:"volume"`
	Namespace string     `json:"namespace"`
}

type repair struct {
	Driver string `json:"driver"`
	Handle string `json:"handle"`
	NodeID string `json:"nodeId"`
}

type answer struct {
	// NotMigrated is set for a volume that no plugin's successor knows.
	NotMigrated bool   `json:"notMigrated,omitempty"`
	Error       string `json:"error,omitempty"`
	// Name is that of the PersistentVolume for the volume of a pod.
	Name string `json:"name,omitempty"`
	// Source and AccessModes are what the attacher would publish.
	Source      *v1.CSIPersistentVolumeSource   `json:"source,omitempty"`
	AccessModes []v1.PersistentVolumeAccessMode `json:"accessModes,omitempty"`
	Handle      *string                         `json:"handle,omitempty"`
	Yes         *bool                           `json:"yes,omitempty"`
	Finalizer   string                          `json:"finalizer,omitempty"`
}

func main() {
	if err := answerAll(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "csi-translation:", err)
		os.Exit(1)
	}
}

func answerAll(in io.Reader, out io.Writer) error {
	questions := json.NewDecoder(bufio.NewReader(in))
	answers := bufio.NewWriter(out)
	encoder := json.NewEncoder(answers)
	encoder.SetEscapeHTML(false)
	library := translation.New()
	for {
		var asked question
		switch err := questions.Decode(&asked); {
		case errors.Is(err, io.EOF):
			return answers.Flush()
		case err != nil:
			return fmt.Errorf("read a question: %w", err)
		}
		given, err := answerOne(library, asked)
		if err != nil {
			return err
		}
		if err := encoder.Encode(given); err != nil {
			return fmt.Errorf("write an answer: %w", err)
		}
	}
}

func answerOne(library translation.CSITranslator, asked question) (answer, error) {
	switch {
	case asked.Translate != nil:
		return translate(library, asked.Translate), nil
	case asked.TranslateInline != nil:
		return translateInline(library, asked.TranslateInline), nil
	case asked.Repair != nil:
		handle, err := library.RepairVolumeHandle(asked.Repair.Driver, asked.Repair.Handle, asked.Repair.NodeID)
		if err != nil {
			return answer{Error: err.Error()}, nil
		}
		return answer{Handle: &handle}, nil
	case asked.IsMigrationDriver != nil:
		yes := library.IsMigratedCSIDriverByName(*asked.IsMigrationDriver)
		return answer{Yes: &yes}, nil
	case asked.Finalizer != nil:
		return answer{Finalizer: controller.GetFinalizerName(*asked.Finalizer)}, nil
	default:
		return answer{}, errors.New("a question must ask something")
	}
}

func translate(library translation.CSITranslator, volume *v1.PersistentVolume) answer {
	if !library.IsPVMigratable(volume) {
		return answer{NotMigrated: true}
	}
	translated, err := library.TranslateInTreePVToCSI(klog.Background(), volume)
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{Source: translated.Spec.CSI, AccessModes: translated.Spec.AccessModes}
}

func translateInline(library translation.CSITranslator, asked *inline) answer {
	if !library.IsInlineMigratable(asked.Volume) {
		return answer{NotMigrated: true}
	}
	translated, err := library.TranslateInTreeInlineVolumeToCSI(klog.Background(), asked.Volume, asked.Namespace)
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{Name: translated.Name, Source: translated.Spec.CSI, AccessModes: translated.Spec.AccessModes}
}
