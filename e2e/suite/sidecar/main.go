// Command sidecar does what node-driver-registrar and livenessprobe do for the suite's drivers, with their flags: the Go
// module proxy has neither. With --kubelet-registration-path it registers the driver with kubelet, with --health-port it
// answers liveness probes of the driver, with --http-endpoint those of the registration.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Where the manifests mount kubelet's directory of plugin sockets.
const registrationDir = "/registration"

type registrar struct {
	registration.UnimplementedRegistrationServer
	info *registration.PluginInfo
}

func (r registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return r.info, nil
}

// NotifyRegistrationStatus ends the process if kubelet refused the driver, so that the container is restarted.
func (r registrar) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !status.PluginRegistered {
		log.Fatalf("kubelet refused %s: %s", r.info.Name, status.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func main() {
	address := flag.String("csi-address", "", "the driver's socket")
	endpoint := flag.String("kubelet-registration-path", "", "the driver's socket as a path on the node")
	healthPort := flag.String("health-port", "", "port of the driver's /healthz")
	httpEndpoint := flag.String("http-endpoint", "", "address of the registration's /healthz")
	timeout := flag.Duration("timeout", time.Minute, "limit of a call of the driver")
	flag.String("v", "", "no effect")
	flag.Parse()
	driver, err := grpc.NewClient("unix://"+*address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	identity := csi.NewIdentityClient(driver)
	if *healthPort != "" {
		log.Fatal(answerProbes(identity, *healthPort))
	}
	log.Fatal(register(identity, *endpoint, *httpEndpoint, *timeout))
}

func answerProbes(identity csi.IdentityClient, port string) error {
	http.HandleFunc("/healthz", func(answer http.ResponseWriter, request *http.Request) {
		ctx, cancel := context.WithTimeout(request.Context(), time.Second)
		defer cancel()
		if _, err := identity.Probe(ctx, &csi.ProbeRequest{}); err != nil {
			http.Error(answer, err.Error(), http.StatusInternalServerError)
		}
	})
	return http.ListenAndServe(":"+port, nil)
}

func register(identity csi.IdentityClient, endpoint, httpEndpoint string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	plugin, err := identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	cancel()
	if err != nil {
		return err
	}
	socket := filepath.Join(registrationDir, plugin.Name+"-reg.sock")
	// That of an earlier container.
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	if httpEndpoint != "" {
		go func() { log.Fatal(serveRegistrationHealth(socket, httpEndpoint)) }()
	}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, registrar{info: &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              plugin.Name,
		Endpoint:          endpoint,
		SupportedVersions: []string{"1.0.0"},
	}})
	return server.Serve(listener)
}

// serveRegistrationHealth answers whether kubelet could reach the registration socket.
func serveRegistrationHealth(socket, address string) error {
	http.HandleFunc("/healthz", func(answer http.ResponseWriter, _ *http.Request) {
		connection, err := net.Dial("unix", socket)
		if err != nil {
			http.Error(answer, err.Error(), http.StatusInternalServerError)
			return
		}
		connection.Close()
	})
	return http.ListenAndServe(address, nil)
}
