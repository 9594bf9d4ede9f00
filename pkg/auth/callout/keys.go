package callout

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/nats-io/nkeys"
)

// Account is the account of services and tenants on the outside server, unless
// [Keys] name another one.
const Account = "FLEXIQ"

// Keys are the secrets of whoever authenticates tenants. They are seeds of
// NKeys; the server's configuration has their public halves. They stand in a
// file that only its owner can read.
type Keys struct {
	Account string `json:"account"` // where tenants' connections are put
	Issuer  string `json:"issuer"`  // account key that signs answers
	XKey    string `json:"xkey"`    // curve key that requests are encrypted to
	User    string `json:"user"`    // user that receives the requests
	System  string `json:"system"`  // user of the system account, which closes connections
}

// PublicKeys are what the server's configuration names.
type PublicKeys struct{ Issuer, XKey, User, System string }

// NewKeys makes fresh keys.
func NewKeys() (Keys, error) {
	k := Keys{Account: Account}
	for _, key := range []struct {
		seed *string
		make func() (nkeys.KeyPair, error)
	}{
		{&k.Issuer, nkeys.CreateAccount}, {&k.XKey, nkeys.CreateCurveKeys}, {&k.User, nkeys.CreateUser}, {&k.System, nkeys.CreateUser},
	} {
		pair, err := key.make()
		if err != nil {
			return Keys{}, err
		}
		seed, err := pair.Seed()
		if err != nil {
			return Keys{}, err
		}
		*key.seed = string(seed)
	}
	return k, nil
}

// ReadKeys reads the file of keys.
func ReadKeys(path string) (Keys, error) {
	var k Keys
	text, err := os.ReadFile(path)
	if err != nil {
		return k, err
	}
	if err := json.Unmarshal(text, &k); err != nil {
		return k, fmt.Errorf("%s is not a file of keys", path) // the error itself may quote a seed
	}
	if k.Account == "" {
		return k, fmt.Errorf("%s: account: is missing", path)
	}
	if _, err := k.Public(); err != nil {
		return k, fmt.Errorf("%s: %w", path, err)
	}
	return k, nil
}

// Public computes the public halves.
func (k Keys) Public() (PublicKeys, error) {
	var p PublicKeys
	for _, key := range []struct {
		name, seed string
		kind       nkeys.PrefixByte
		public     *string
	}{
		{"issuer", k.Issuer, nkeys.PrefixByteAccount, &p.Issuer},
		{"xkey", k.XKey, nkeys.PrefixByteCurve, &p.XKey},
		{"user", k.User, nkeys.PrefixByteUser, &p.User},
		{"system", k.System, nkeys.PrefixByteUser, &p.System},
	} {
		pair, err := pairOf(key.seed, key.kind)
		if err != nil {
			return PublicKeys{}, fmt.Errorf("%s: %w", key.name, err)
		}
		if *key.public, err = pair.PublicKey(); err != nil {
			return PublicKeys{}, fmt.Errorf("%s: %w", key.name, err)
		}
	}
	return p, nil
}

var errSeed = errors.New("is not the seed of a key of its kind")

func pairOf(seed string, kind nkeys.PrefixByte) (nkeys.KeyPair, error) {
	got, _, err := nkeys.DecodeSeed([]byte(seed))
	if err != nil || got != kind {
		return nil, errSeed
	}
	if kind == nkeys.PrefixByteCurve {
		return nkeys.FromCurveSeed([]byte(seed))
	}
	return nkeys.FromSeed([]byte(seed))
}
