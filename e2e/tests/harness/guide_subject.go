package sidecar

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// Calls Probe until the driver is ready, by hand, because there is no gRPC in Go's library.
func waitUntilReady(t testing.TB, socket string) {
	t.Helper()
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	client := http.Client{Transport: &http.Transport{
		Protocols: &protocols,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	defer client.CloseIdleConnections()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		// A message that is empty and not compressed.
		request, err := http.NewRequest("POST", "http://driver/csi.v1.Identity/Probe", bytes.NewReader(make([]byte, 5)))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/grpc")
		request.Header.Set("TE", "trailers")
		answer, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		if err == nil && (answer.Header.Get("Grpc-Status")+answer.Trailer.Get("Grpc-Status")) == "0" {
			return
		}
	}
	t.Fatal("the driver was never ready")
}
