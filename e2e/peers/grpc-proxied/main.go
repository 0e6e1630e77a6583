// Command grpc-proxied shows what grpc-go sees of calls, on both sides of a proxy.
//
//	grpc-proxied serve SOCKET   a server that answers every method, and tells what arrived
//	grpc-proxied call SOCKET    calls it in many ways, and prints what arrived there and what came back
//
// The output of call must be the same with and without a proxy between the two.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sort"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// Of one call.
	timeout = 20 * time.Second
	// How the caller names what is to be done.
	caseKey = "x-case"

	unary   = "/csi.v1.Controller/ControllerGetVolume"
	unknown = "/csi.v1.Controller/NoSuchMethod"
	stream  = "/csi.v1.SnapshotMetadata/GetMetadataAllocated"
	foreign = "/vendor.v1.Copy/Exchange"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "grpc-proxied:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 2 && args[0] == "serve" {
		return serve(args[1])
	}
	if len(args) == 2 && args[0] == "call" {
		return callAll(args[1])
	}
	return fmt.Errorf("usage: grpc-proxied serve|call SOCKET")
}

// Messages are bytes here, whatever they are to others.
type raw struct{}

func (raw) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }

func (raw) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = bytes.Clone(data)
	return nil
}

func (raw) Name() string { return "proto" }

var _ encoding.Codec = raw{}

// === the server ===

type server struct {
	ended chan error
}

// Which compression messages of a call came with.
type compressionKey struct{}

type compression struct{}

func (compression) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, compressionKey{}, new(string))
}

func (compression) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if header, ok := event.(*stats.InHeader); ok {
		if seen, ok := ctx.Value(compressionKey{}).(*string); ok {
			*seen = header.Compression
		}
	}
}

func (compression) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (compression) HandleConn(context.Context, stats.ConnStats)                       {}

func serve(socket string) error {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	s := &server{ended: make(chan error, 1)}
	return grpc.NewServer(
		grpc.ForceServerCodec(raw{}),
		grpc.StatsHandler(compression{}),
		grpc.UnknownServiceHandler(s.handle),
	).Serve(listener)
}

func (s *server) handle(_ any, call grpc.ServerStream) error {
	ctx := call.Context()
	sent, _ := metadata.FromIncomingContext(ctx)
	method, _ := grpc.MethodFromServerStream(call)
	name := strings.Join(sent.Get(caseKey), "")
	if err := call.SetHeader(metadata.Pairs("x-header", name, "x-twice", "a", "x-twice", "b", "x-bytes-bin", "\x00\xff")); err != nil {
		return err
	}
	call.SetTrailer(metadata.Pairs("x-trailer", name, "x-more-bin", "\x01\xfe"))
	switch name {
	case "speaks-first":
		return speakFirst(call)
	case "stream":
		return streamThenFail(call)
	case "cancelled":
		if err := call.SendHeader(nil); err != nil {
			return err
		}
		<-ctx.Done()
		s.ended <- ctx.Err()
		return ctx.Err()
	case "late":
		<-ctx.Done()
		s.ended <- ctx.Err()
		return ctx.Err()
	case "ended":
		select {
		case err := <-s.ended:
			return reply(call, err.Error())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var message []byte
	if err := call.RecvMsg(&message); err != nil {
		return err
	}
	switch name {
	case "unknown-method":
		return status.Errorf(codes.Unimplemented, "unknown method %s", method)
	case "details":
		failed, err := status.New(codes.ResourceExhausted, "no room: 50% \u00fc\n").WithDetails(
			wrapperspb.String("a detail"), durationpb.New(time.Second))
		if err != nil {
			return err
		}
		return failed.Err()
	case "compressed":
		if err := grpc.SetSendCompressor(ctx, gzip.Name); err != nil {
			return err
		}
	}
	_, hasDeadline := ctx.Deadline()
	seen, _ := ctx.Value(compressionKey{}).(*string)
	return reply(call, fmt.Sprintf("%s deadline=%t compression=%q metadata=%s message=%d bytes %x",
		method, hasDeadline, *seen, shown(sent), len(message), message[:min(len(message), 16)]))
}

func reply(call grpc.ServerStream, text string) error {
	message := []byte(text)
	return call.SendMsg(&message)
}

// Both sides speak in turn, and the server begins.
func speakFirst(call grpc.ServerStream) error {
	if err := reply(call, "hello"); err != nil {
		return err
	}
	for {
		var message []byte
		if err := call.RecvMsg(&message); err == io.EOF {
			return reply(call, "you have finished")
		} else if err != nil {
			return err
		}
		if err := reply(call, "you said "+string(message)); err != nil {
			return err
		}
	}
}

func streamThenFail(call grpc.ServerStream) error {
	for _, text := range []string{"one", "", strings.Repeat("long", 1<<16)} {
		if err := reply(call, text); err != nil {
			return err
		}
	}
	return status.Error(codes.Aborted, "after three")
}

// === the client ===

type client struct {
	connection *grpc.ClientConn
}

func callAll(socket string) error {
	connection, err := grpc.NewClient("unix:"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})),
	)
	if err != nil {
		return err
	}
	defer connection.Close()
	c := client{connection}
	message := []byte("\x0a\x05vol-0")
	c.unary("metadata", unary, message)
	c.unary("empty", unary, nil)
	c.unary("unreadable", unary, []byte("\xff\xff\xff"))
	c.unary("long", unary, bytes.Repeat([]byte("\x0a\x01v"), 1<<18))
	c.unary("details", unary, message)
	c.unary("unknown-method", unknown, message)
	c.unary("compressed", unary, bytes.Repeat(message, 100), grpc.UseCompressor(gzip.Name))
	for _, call := range []func() error{c.stream, c.speakFirst, c.cancel, c.late} {
		if err := call(); err != nil {
			return err
		}
	}
	return nil
}

func outgoing(name string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	return metadata.AppendToOutgoingContext(ctx,
		caseKey, name, "x-token", "a b,c", "x-twice", "1", "x-twice", "2", "x-bytes-bin", "\x00\x80\xff"), cancel
}

func (c client) unary(name, method string, message []byte, options ...grpc.CallOption) {
	ctx, cancel := outgoing(name)
	defer cancel()
	var header, trailer metadata.MD
	var answer []byte
	err := c.connection.Invoke(ctx, method, &message, &answer,
		append(options, grpc.Header(&header), grpc.Trailer(&trailer))...)
	fmt.Printf("%s: %s header=%s trailer=%s %s\n", name, answer, shown(header), shown(trailer), said(err))
}

func (c client) open(ctx context.Context, method string) (grpc.ClientStream, error) {
	return c.connection.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
}

func (c client) stream() error {
	ctx, cancel := outgoing("stream")
	defer cancel()
	call, err := c.open(ctx, stream)
	if err != nil {
		return err
	}
	message := []byte("\x0a\x01s")
	if err := call.SendMsg(&message); err != nil {
		return err
	}
	if err := call.CloseSend(); err != nil {
		return err
	}
	for {
		var answer []byte
		if err := call.RecvMsg(&answer); err != nil {
			header, _ := call.Header()
			fmt.Printf("stream: header=%s trailer=%s %s\n", shown(header), shown(call.Trailer()), said(err))
			return nil
		}
		fmt.Printf("stream: %d bytes\n", len(answer))
	}
}

func (c client) speakFirst() error {
	ctx, cancel := outgoing("speaks-first")
	defer cancel()
	call, err := c.open(ctx, foreign)
	if err != nil {
		return err
	}
	for _, next := range []string{"first", "second", ""} {
		var answer []byte
		if err := call.RecvMsg(&answer); err != nil {
			return err
		}
		fmt.Printf("speaks-first: %s\n", answer)
		if next == "" {
			break
		}
		message := []byte(next)
		if err := call.SendMsg(&message); err != nil {
			return err
		}
	}
	if err := call.CloseSend(); err != nil {
		return err
	}
	var answer []byte
	err = call.RecvMsg(&answer)
	fmt.Printf("speaks-first: %s %s\n", answer, said(err))
	err = call.RecvMsg(&answer)
	fmt.Printf("speaks-first: trailer=%s %t\n", shown(call.Trailer()), err == io.EOF)
	return nil
}

// A client that leaves resets its stream.
func (c client) cancel() error {
	ctx, cancel := outgoing("cancelled")
	call, err := c.open(ctx, foreign)
	if err != nil {
		return err
	}
	if _, err := call.Header(); err != nil {
		return err
	}
	cancel()
	var answer []byte
	fmt.Printf("cancelled: %s\n", said(call.RecvMsg(&answer)))
	c.unary("ended", foreign, nil)
	return nil
}

func (c client) late() error {
	ctx, cancel := outgoing("late")
	defer cancel()
	ctx, cancelSoon := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancelSoon()
	message, answer := []byte("\x0a\x05vol-0"), []byte(nil)
	err := c.connection.Invoke(ctx, unary, &message, &answer)
	fmt.Printf("late: %s\n", status.Code(err))
	ctx, cancelEnded := outgoing("ended")
	defer cancelEnded()
	// Whether deadline or reset ends the server's side first is open.
	err = c.connection.Invoke(ctx, foreign, &message, &answer)
	fmt.Printf("late: ended=%t %s\n", len(answer) > 0, said(err))
	return nil
}

// Metadata without what differs from run to run.
func shown(md metadata.MD) string {
	var pairs []string
	for key, values := range md {
		if strings.HasPrefix(key, "x-") {
			pairs = append(pairs, fmt.Sprintf("%s=%q", key, values))
		}
	}
	sort.Strings(pairs)
	return "[" + strings.Join(pairs, " ") + "]"
}

func said(err error) string {
	failed := status.Convert(err)
	var details []string
	for _, detail := range failed.Proto().GetDetails() {
		details = append(details, fmt.Sprintf("%s=%x", detail.TypeUrl, detail.Value))
	}
	return fmt.Sprintf("%s %q %s", failed.Code(), failed.Message(), details)
}
