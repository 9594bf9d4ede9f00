package main

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// clean makes any text safe to show on a terminal, on one line: control
// characters, invisible marks and broken bytes are written as escapes, so that
// no name, error or payload can move the cursor, change colours or turn the
// direction of writing.
func clean(s string) string {
	if !strings.ContainsFunc(s, unsafe) && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b.WriteString(`\x` + strconv.FormatUint(uint64(s[i])|0x100, 16)[1:])
		case unsafe(r):
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
		default:
			b.WriteString(s[i : i+size])
		}
		i += size
	}
	return b.String()
}

func unsafe(r rune) bool { return !unicode.IsPrint(r) }
