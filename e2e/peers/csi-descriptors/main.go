// Command csi-descriptors writes the official descriptor of csi.proto to stdout, as a serialised
// google.protobuf.FileDescriptorProto, so that a hand-written csi.proto can be compared with it
// field by field.
package main

import (
	"fmt"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
)

func main() {
	// Deterministic, so that two runs of one build can be compared byte by byte.
	descriptor := protodesc.ToFileDescriptorProto(csi.File_csi_proto)
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(descriptor)
	if err == nil {
		_, err = os.Stdout.Write(wire)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "csi-descriptors:", err)
		os.Exit(1)
	}
}
