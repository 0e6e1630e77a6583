// Command ssh is the bastion through which the suite reaches nodes by SSH. It answers for port 22 of each node itself: it runs
// commands in the node's namespaces, and passes systemctl on to the harness, whose child kubelet is. Only the holder of the
// key that it writes to --key can use it.
package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"
)

// What a shell answers if there is no such program.
const notFound = 127

// node is a node by its address.
type node struct {
	name string
	// init is the id of the node's first process.
	init string
	// kubelets is the socket through which the harness starts and stops kubelets.
	kubelets string
}

type server struct {
	config *ssh.ServerConfig
	nodes  map[string]node
}

func main() {
	kubelets := flag.String("kubelets", "", "socket of the harness")
	address := flag.String("address", "", "file to write the bastion's address to")
	key := flag.String("key", "", "file to write the client's private key to")
	nodes := map[string]node{}
	flag.Func("node", "NAME,ADDRESS,PID of a node", func(value string) error {
		parts := strings.Split(value, ",")
		if len(parts) != 3 {
			return errors.New("must have three parts")
		}
		nodes[parts[1]] = node{name: parts[0], init: parts[2], kubelets: *kubelets}
		return nil
	})
	flag.Parse()
	client, err := makeKey(*key)
	if err != nil {
		log.Fatal(err)
	}
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	host, err := ssh.NewSignerFromKey(private)
	if err != nil {
		log.Fatal(err)
	}
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, offered ssh.PublicKey) (*ssh.Permissions, error) {
		if !bytes.Equal(offered.Marshal(), client.Marshal()) {
			return nil, errors.New("unknown key")
		}
		return nil, nil
	}}
	config.AddHostKey(host)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	if err := writeWhole(*address, listener.Addr().String()); err != nil {
		log.Fatal(err)
	}
	server := server{config: config, nodes: nodes}
	for {
		connection, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go server.serve(connection, nil)
	}
}

// makeKey writes a private key to the file and returns its public key.
func makeKey(file string) (ssh.PublicKey, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
		return nil, err
	}
	return ssh.NewPublicKey(public)
}

// writeWhole makes the file appear with its content.
func writeWhole(file, text string) error {
	draft := file + ".draft"
	if err := os.WriteFile(draft, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(draft, file)
}

// serve answers a connection to a node, or to the bastion if there is none: its clients connect to nodes.
func (s server) serve(connection net.Conn, at *node) {
	defer connection.Close()
	_, offers, requests, err := ssh.NewServerConn(connection, s.config)
	if err != nil {
		log.Printf("handshake: %v", err)
		return
	}
	go ssh.DiscardRequests(requests)
	for offer := range offers {
		switch {
		case at == nil && offer.ChannelType() == "direct-tcpip":
			s.connect(offer)
		case at != nil && offer.ChannelType() == "session":
			channel, requests, err := offer.Accept()
			if err != nil {
				log.Printf("accept a session: %v", err)
				return
			}
			go at.serve(channel, requests)
		default:
			reject(offer, ssh.UnknownChannelType, offer.ChannelType())
		}
	}
}

// connect answers a connection to port 22 of a node.
func (s server) connect(offer ssh.NewChannel) {
	var target struct {
		Host       string
		Port       uint32
		OriginHost string
		OriginPort uint32
	}
	if err := ssh.Unmarshal(offer.ExtraData(), &target); err != nil {
		reject(offer, ssh.ConnectionFailed, err.Error())
		return
	}
	at, known := s.nodes[target.Host]
	if !known || target.Port != 22 {
		reject(offer, ssh.ConnectionFailed, fmt.Sprintf("no node has %s:%d", target.Host, target.Port))
		return
	}
	channel, requests, err := offer.Accept()
	if err != nil {
		log.Printf("accept a connection: %v", err)
		return
	}
	go ssh.DiscardRequests(requests)
	near, far := net.Pipe()
	go s.serve(far, &at)
	go func() {
		io.Copy(near, channel)
		near.Close()
	}()
	go func() {
		io.Copy(channel, near)
		channel.Close()
	}()
}

func reject(offer ssh.NewChannel, reason ssh.RejectionReason, why string) {
	if err := offer.Reject(reason, why); err != nil {
		log.Printf("reject %s: %v", why, err)
	}
}

// serve runs the command of a session.
func (n node) serve(channel ssh.Channel, requests <-chan *ssh.Request) {
	defer channel.Close()
	for request := range requests {
		if request.Type != "exec" {
			request.Reply(false, nil)
			continue
		}
		var command struct{ Line string }
		if err := ssh.Unmarshal(request.Payload, &command); err != nil {
			log.Printf("read a command: %v", err)
			return
		}
		request.Reply(true, nil)
		code := n.run(command.Line, channel)
		log.Printf("%s: %s: %d", n.name, command.Line, code)
		channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(code)}))
		return
	}
}

// run returns the command's exit code.
func (n node) run(line string, channel ssh.Channel) int {
	words := strings.Fields(line)
	if len(words) > 0 && words[0] == "sudo" {
		// With sudo the suite would write it before each command.
		fmt.Fprintln(channel.Stderr(), "sudo: command not found")
		return notFound
	}
	if len(words) > 2 && words[0] == "systemctl" && words[2] == "kubelet" {
		return n.systemctl(words[1], channel)
	}
	command := exec.Command("nsenter", "--target", n.init, "--mount", "--uts", "--ipc", "--net", "--pid", "--", "sh", "-c", line)
	command.Stdout, command.Stderr = channel, channel.Stderr()
	err := command.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		return exit.ExitCode()
	default:
		fmt.Fprintln(channel.Stderr(), err)
		return notFound
	}
}

// systemctl asks the harness, which answers with an exit code and what is to be printed.
func (n node) systemctl(verb string, channel ssh.Channel) int {
	answer, err := ask(n.kubelets, n.name+" "+verb+"\n")
	if err == nil {
		code, text, _ := strings.Cut(answer, " ")
		var exit int
		if exit, err = strconv.Atoi(code); err == nil {
			fmt.Fprintln(channel, text)
			return exit
		}
	}
	fmt.Fprintln(channel.Stderr(), err)
	return 1
}

func ask(socket, question string) (string, error) {
	connection, err := net.Dial("unix", socket)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	if _, err := io.WriteString(connection, question); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(connection)
	return string(answer), err
}
