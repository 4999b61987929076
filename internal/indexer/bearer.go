package indexer

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"

	"github.com/tallygate/tallygate/internal/problem"
)

// requireBearer lets only those through to next who present a bearer token with
// one of the digests, SHA-256 in hexadecimal; with no digests it lets everybody.
func requireBearer(digests []string, next http.Handler) (http.Handler, error) {
	if len(digests) == 0 {
		return next, nil
	}
	allowed := make([][]byte, len(digests))
	for i, d := range digests {
		b, err := hex.DecodeString(d)
		if err != nil || len(b) != sha256.Size {
			return nil, fmt.Errorf("read token %d is no SHA-256 digest of 64 hexadecimal digits; make one with: printf %%s TOKEN | sha256sum", i+1)
		}
		allowed[i] = b
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, presented, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		digest := sha256.Sum256([]byte(strings.TrimSpace(presented)))
		known := 0
		for _, a := range allowed { // all of them: the time tells nothing
			known |= subtle.ConstantTimeCompare(a, digest[:])
		}
		if known == 0 || !strings.EqualFold(scheme, "Bearer") {
			w.Header().Set("WWW-Authenticate", `Bearer realm="tallygate"`)
			problem.Write(w, problem.New(http.StatusUnauthorized, "Authorization", "send a read token: Authorization: Bearer …"))
			return
		}
		next.ServeHTTP(w, r)
	}), nil
}
