// Package namespace says what a tenant's name may be and how it is written
// where other characters have a meaning: as one token of a NATS subject and as
// a settings key.
//
// A name is 1 to 255 bytes of valid UTF-8 without control characters and
// without leading or trailing white space, compared byte for byte. Both
// encodings are one-to-one, so two names never meet in a subject or a key.
package namespace

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// Default is the namespace of an installation that has only one tenant.
	Default = "default"

	// PlatformToken stands where a subject or a token names a namespace but
	// belongs to the installation. No name encodes to it.
	PlatformToken = "="

	// MaxBytes bounds a name's length.
	MaxBytes = 255

	// quotaPrefix is reserved in the settings store: no generic key can spell it.
	quotaPrefix = "quota:"
)

// Check tells what is wrong with a name, nil when nothing is. The same rule
// holds for queues, tasks, workers, schedules, triggers and keys. The message
// starts with a verb, so that a caller can put the field's name before it.
func Check(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("must not be empty")
	case len(name) > MaxBytes:
		return fmt.Errorf("must be at most %d bytes, got %d", MaxBytes, len(name))
	case !utf8.ValidString(name):
		return fmt.Errorf("must be valid UTF-8")
	}
	for _, r := range name {
		if unicode.IsControl(r) {
			return fmt.Errorf("must not contain control characters, found %U", r)
		}
	}
	if strings.TrimSpace(name) != name {
		return fmt.Errorf("must not start or end with white space")
	}
	return nil
}

const hexDigits = "0123456789abcdef"

// plain reports whether a byte stands for itself in a subject token. Upper
// case does not: NATS lower-cases the tags of a JWT, in which tokens appear.
func plain(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= '0' && b <= '9' || b == '_' || b == '-'
}

// Encode writes a name as one token of a subject: bytes [a-z0-9_-] stay, every
// other byte becomes "=" and two lower-case hexadecimal digits.
func Encode(name string) string {
	i := 0
	for i < len(name) && plain(name[i]) {
		i++
	}
	if i == len(name) {
		return name
	}
	out := make([]byte, i, len(name)+16)
	copy(out, name)
	for ; i < len(name); i++ {
		if b := name[i]; plain(b) {
			out = append(out, b)
		} else {
			out = append(out, '=', hexDigits[b>>4], hexDigits[b&15])
		}
	}
	return string(out)
}

// Decode reads a subject token back. It is strict: only what [Encode] writes
// for a valid name is accepted.
func Decode(token string) (string, error) {
	out := make([]byte, 0, len(token))
	for i := 0; i < len(token); i++ {
		b := token[i]
		if plain(b) {
			out = append(out, b)
			continue
		}
		if b != '=' || i+2 >= len(token) {
			return "", fmt.Errorf("namespace token %q: unexpected byte %q at %d", token, b, i)
		}
		hi, lo := strings.IndexByte(hexDigits, token[i+1]), strings.IndexByte(hexDigits, token[i+2])
		if hi < 0 || lo < 0 {
			return "", fmt.Errorf("namespace token %q: bad escape at %d", token, i)
		}
		c := byte(hi<<4 | lo)
		if plain(c) {
			return "", fmt.Errorf("namespace token %q: needless escape at %d", token, i)
		}
		out = append(out, c)
		i += 2
	}
	name := string(out)
	if err := Check(name); err != nil {
		return "", fmt.Errorf("namespace token %q: the name %w", token, err)
	}
	return name, nil
}

// QuotaKey is the settings key of a namespace's quota document. The length
// keeps names with colons apart.
func QuotaKey(name string) string {
	if name == Default {
		return quotaPrefix + Default
	}
	return quotaPrefix + "ns:" + strconv.Itoa(len(name)) + ":" + name
}

// ParseQuotaKey reads the namespace out of a quota document's settings key. It
// is strict: only what [QuotaKey] writes for a valid name is accepted.
func ParseQuotaKey(key string) (string, error) {
	rest, ok := strings.CutPrefix(key, quotaPrefix)
	if !ok {
		return "", fmt.Errorf("settings key %q: not a quota key", key)
	}
	if rest == Default {
		return Default, nil
	}
	size, name, ok := strings.Cut(strings.TrimPrefix(rest, "ns:"), ":")
	if !ok || Check(name) != nil || QuotaKey(name) != key {
		return "", fmt.Errorf("settings key %q: length %q and name %q are not a quota key", key, size, name)
	}
	return name, nil
}
