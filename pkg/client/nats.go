package client

import (
	"context"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	"flexiq/pkg/auth"
	"flexiq/pkg/bus"
)

// natsTransport speaks protobuf over NATS.
type natsTransport struct {
	conn     *bus.Conn
	server   string
	nsToken  string
	subjects map[string]string // of each method, for the token
	inboxes  inboxes
}

func dialNATS(ctx context.Context, opts Options, parts auth.Parts) (*natsTransport, error) {
	name := opts.Name
	if name == "" {
		name = filepath.Base(os.Args[0])
	}
	if opts.CAFile != "" {
		if _, err := readCAs(opts.CAFile); err != nil {
			return nil, err
		}
	}
	conn, err := bus.Connect(ctx, bus.Options{URL: opts.Server, Name: name, Token: opts.Token, CAFile: opts.CAFile, Log: opts.Log})
	if err != nil {
		return nil, dialFault(ctx, opts.Server, err)
	}
	t := &natsTransport{conn: conn, server: opts.Server, nsToken: parts.NSToken, subjects: make(map[string]string, len(auth.Methods))}
	for _, m := range auth.Methods {
		t.subjects[m.Name] = bus.Subject(m.Verb, parts.NSToken, parts.ID)
	}
	return t, nil
}

func (t *natsTransport) call(ctx context.Context, method string, req, res proto.Message) error {
	return t.fault(t.conn.Call(ctx, t.subjects[method], req, res))
}

// met: there was a connection, or there would be no transport.
func (t *natsTransport) met() bool { return true }

func (t *natsTransport) maxMessage() int { return int(t.conn.Raw().MaxPayload()) }

func (t *natsTransport) close(ctx context.Context) error {
	t.conn.Close(ctx)
	return nil
}
