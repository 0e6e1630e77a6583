// Command grpc-clients calls a driver as the programs do that are written in Go: kubelet, which dials the bare path of
// a socket, and sidecars, which dial it as unix:. Prints a line for each call that was answered.
//
//	grpc-clients csi SOCKET            GetPluginInfo and Probe, some times over one connection
//	grpc-clients registration SOCKET   GetInfo and NotifyRegistrationStatus
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Kubelet's own, for dialling and for each call.
const timeout = 10 * time.Second

// More calls than one, as the later ones refer to the header fields of the first.
const calls = 3

type dialler struct {
	name string
	dial func(ctx context.Context, socket string) (*grpc.ClientConn, error)
}

var diallers = []dialler{
	{"kubelet", asKubelet},
	{"sidecar", asSidecar},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "grpc-clients:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: grpc-clients csi|registration SOCKET")
	}
	service, socket := args[0], args[1]
	call, known := map[string]func(context.Context, *grpc.ClientConn) (string, error){
		"csi":          callCSI,
		"registration": callRegistration,
	}[service]
	if !known {
		return fmt.Errorf("unknown service %q", service)
	}
	for _, dialler := range diallers {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		connection, err := dialler.dial(ctx, socket)
		if err != nil {
			return fmt.Errorf("%s: dial %s: %w", dialler.name, socket, err)
		}
		defer connection.Close()
		for i := 0; i < calls; i++ {
			name, err := call(ctx, connection)
			if err != nil {
				return fmt.Errorf("%s: call %d to %s: %w", dialler.name, i+1, socket, err)
			}
			fmt.Println(dialler.name, service, name)
		}
	}
	return nil
}

// As in kubelet's plugin manager: the target has no scheme, so its escaped path becomes the authority.
func asKubelet(ctx context.Context, socket string) (*grpc.ClientConn, error) {
	return grpc.DialContext(ctx, socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithBlock(),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", address)
		}),
	)
}

func asSidecar(_ context.Context, socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

func callCSI(ctx context.Context, connection *grpc.ClientConn) (string, error) {
	client := csi.NewIdentityClient(connection)
	if _, err := client.Probe(ctx, &csi.ProbeRequest{}); err != nil {
		return "", fmt.Errorf("Probe: %w", err)
	}
	info, err := client.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	return info.GetName(), err
}

func callRegistration(ctx context.Context, connection *grpc.ClientConn) (string, error) {
	client := registration.NewRegistrationClient(connection)
	info, err := client.GetInfo(ctx, &registration.InfoRequest{})
	if err != nil {
		return "", fmt.Errorf("GetInfo: %w", err)
	}
	_, err = client.NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{PluginRegistered: true})
	return info.GetName(), err
}
