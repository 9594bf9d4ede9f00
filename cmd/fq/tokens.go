package main

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	flexiqv1 "flexiq/pkg/api/flexiq/v1"
	"flexiq/pkg/auth"
)

type tokensCmd struct {
	Create tokensCreateCmd `cmd:"" help:"Create a token; its secret is shown once."`
	List   tokensListCmd   `cmd:"" help:"List tokens, without their secrets."`
	Revoke tokensRevokeCmd `cmd:"" help:"End a token."`
}

type tokensCreateCmd struct {
	Scope     []string      `help:"What it may do: produce, work, inspect, admin; may be repeated." required:"" placeholder:"SCOPE"`
	Name      string        `help:"What it is for."`
	TTL       time.Duration `name:"ttl" help:"How long it lives, at most 365d (default: 90d)." placeholder:"90d" positive:""`
	Namespace string        `help:"Namespace that it is bound to (platform token)."`
}

func (cmd *tokensCreateCmd) Run(s *session) error {
	c, hangUp, err := s.dial(needOf(cmd.Namespace != ""))
	if err != nil {
		return err
	}
	defer hangUp()
	req := &flexiqv1.CreateTokenRequest{Namespace: cmd.Namespace, Scopes: cmd.Scope, Name: cmd.Name}
	if cmd.TTL != 0 {
		req.Ttl = durationpb.New(cmd.TTL)
	}
	res, err := c.Admin().CreateToken(s.ctx, req)
	if err != nil {
		return err
	}
	if s.json() {
		return writeJSON(s.out, res)
	}
	t := new(table)
	t.row("token", res.GetToken())
	t.row("id", res.GetId())
	t.row("expires", when(res.GetExpiresAt()))
	if line := cmd.natsLine(s, res.GetToken()); line != "" {
		t.row("try", line)
	}
	return t.write(s.out)
}

// natsLine is a command of the nats tool that uses the token, with the secret
// in the environment: arguments can be read by everybody on the host.
func (cmd *tokensCreateCmd) natsLine(s *session, token string) string {
	parts, err := auth.Parse(token)
	if err != nil {
		return ""
	}
	tries := []struct{ scope, verb, body string }{
		{"produce", "enqueue", `{"job":{"task":"hello","args":{"to":"world"}}}`},
		{"work", "claim", `{"max_jobs":1}`},
		{"inspect", "get-usage", `{}`},
		{"admin", "list-tokens", `{}`},
		{"platform", "list-namespaces", `{}`},
	}
	for _, try := range tries {
		if !holds(cmd.Scope, try.scope) {
			continue
		}
		server := ""
		if o, err := s.target(ofNamespace); err == nil && strings.HasPrefix(o.Server, "nats://") {
			server = " --server " + quoteShell(o.Server)
		}
		return fmt.Sprintf("NATS_USER='%s' nats%s --inbox-prefix %s req %s '%s'",
			token, server, auth.Inbox(parts.NSToken, parts.ID), auth.Subject(try.verb, parts.NSToken, parts.ID), try.body)
	}
	return ""
}

func holds(scopes []string, scope string) bool {
	for _, s := range scopes {
		if s == scope {
			return true
		}
	}
	return false
}

// quoteShell writes a text as one word of a shell.
func quoteShell(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

type tokensListCmd struct {
	Namespace string `help:"Of this namespace (platform token)."`
	paging
}

func (cmd *tokensListCmd) Run(s *session) error {
	c, hangUp, err := s.dial(needOf(cmd.Namespace != ""))
	if err != nil {
		return err
	}
	defer hangUp()
	l := listing[*flexiqv1.ListTokensResponse, *flexiqv1.TokenInfo]{
		name:   "tokens",
		items:  (*flexiqv1.ListTokensResponse).GetTokens,
		header: []any{"ID", "NAMESPACE", "NAME", "SCOPES", "CREATED", "EXPIRES", "REVOKED", "LAST USED"},
		row: func(t *flexiqv1.TokenInfo) []any {
			return []any{
				t.GetId(), orDash(t.GetNamespace()), orDash(t.GetName()), strings.Join(t.GetScopes(), ","),
				when(t.GetCreatedAt()), when(t.GetExpiresAt()), when(t.GetRevokedAt()), when(t.GetLastUsedAt()),
			}
		},
	}
	return l.print(s, cmd.paging, func(size int32, token string) (*flexiqv1.ListTokensResponse, error) {
		return c.Admin().ListTokens(s.ctx, &flexiqv1.ListTokensRequest{Namespace: cmd.Namespace, PageSize: size, PageToken: token})
	})
}

type tokensRevokeCmd struct {
	ID        string `arg:"" name:"id" help:"Id of the token."`
	Namespace string `help:"Namespace that it is bound to (platform token)."`
}

func (cmd *tokensRevokeCmd) Run(s *session) error {
	c, hangUp, err := s.dial(needOf(cmd.Namespace != ""))
	if err != nil {
		return err
	}
	defer hangUp()
	res, err := c.Admin().RevokeToken(s.ctx, &flexiqv1.RevokeTokenRequest{Id: cmd.ID, Namespace: cmd.Namespace})
	if err != nil {
		return err
	}
	if s.json() {
		return writeJSON(s.out, res)
	}
	_, err = fmt.Fprintf(s.out, "revoked %s\n", clean(cmd.ID))
	return err
}
