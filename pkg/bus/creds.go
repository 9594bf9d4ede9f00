package bus

import (
	"bytes"
	"fmt"
	"os"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// jwtMark is in every credentials file that holds a JWT.
const jwtMark = "BEGIN NATS USER JWT"

// creds is how the connection shows who it is beside tokens and passwords: by a
// file of credentials with a JWT, as servers with operators want them, by a
// file with the seed of a user's NKey, as servers with plain accounts do, or by
// such a seed itself. Files are read again at each reconnection. Nil: by none.
func (o Options) creds() (nats.Option, error) {
	switch {
	case o.Seed != "":
		return nkey(o.Seed)
	case o.CredsFile == "":
		return nil, nil
	}
	text, err := os.ReadFile(o.CredsFile)
	if err != nil {
		return nil, fmt.Errorf("credentials for NATS: %w", err)
	}
	if bytes.Contains(text, []byte(jwtMark)) {
		return nats.UserCredentials(o.CredsFile), nil
	}
	opt, err := nats.NkeyOptionFromSeed(o.CredsFile)
	if err != nil {
		return nil, fmt.Errorf("credentials for NATS: %s holds neither a JWT with its seed nor the seed of a user", o.CredsFile)
	}
	return opt, nil
}

func nkey(seed string) (nats.Option, error) {
	pair, err := nkeys.FromSeed([]byte(seed))
	if err != nil {
		return nil, fmt.Errorf("seed of a NATS user: %w", err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("seed of a NATS user: %w", err)
	}
	return nats.Nkey(public, pair.Sign), nil
}
