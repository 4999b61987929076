// Package credential tells who an administrator is by a bearer token.
//
//	token   a secret that a person or program presents: Authorization: Bearer tg_…
//	digest  its SHA-256, which is all that the configuration holds. Tokens are made
//	        at random with 130 bits, so no slow hash is needed to protect them
//	role    read: may look; write: may look and change
package credential

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/tallygate/tallygate/internal/config"
)

// Errors of Check. Clients are told both as one: who guesses learns nothing.
var (
	ErrUnknown = errors.New("unknown credential")
	ErrExpired = errors.New("expired credential")
)

// Role is what a credential allows.
type Role string

// The roles.
const (
	Read  Role = "read"
	Write Role = "write"
)

// Allows reports whether r is enough where need is needed.
func (r Role) Allows(need Role) bool { return r == Write || r == need }

// Credential is who has been recognised.
type Credential struct {
	Name string
	Role Role
}

// Set is all credentials. It is safe for concurrent use and never changes; the
// zero value knows nobody.
type Set struct{ entries []entry }

type entry struct {
	Credential
	digest  [sha256.Size]byte
	expires time.Time // zero: never
}

// New returns the credentials of a configuration.
func New(configured []config.AdminCredential) (*Set, error) {
	s := &Set{}
	for i, c := range configured {
		e := entry{Credential: Credential{c.Name, Role(c.Role)}}
		digest, err := hex.DecodeString(c.SHA256)
		if err != nil || copy(e.digest[:], digest) != len(digest) || len(digest) != sha256.Size {
			return nil, fmt.Errorf("admin.credentials[%d].sha256: is not the 64 hex digits of a SHA-256; make one with: tallygate credential", i)
		}
		if c.Expires != "" {
			if e.expires, err = time.Parse(time.RFC3339, c.Expires); err != nil {
				return nil, fmt.Errorf("admin.credentials[%d].expires: %q is not a time such as 2030-01-31T00:00:00Z", i, c.Expires)
			}
		}
		s.entries = append(s.entries, e)
	}
	return s, nil
}

// Empty reports whether there are no credentials at all.
func (s *Set) Empty() bool { return len(s.entries) == 0 }

// Check returns whose token it is. It takes the same time whatever the token: all
// digests are compared, each in constant time.
func (s *Set) Check(token string, now time.Time) (Credential, error) {
	digest := sha256.Sum256([]byte(token))
	found := -1
	for i := range s.entries {
		if subtle.ConstantTimeCompare(digest[:], s.entries[i].digest[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return Credential{}, ErrUnknown
	}
	e := &s.entries[found]
	if !e.expires.IsZero() && !now.Before(e.expires) {
		return Credential{}, fmt.Errorf("%w: %s", ErrExpired, e.Name)
	}
	return e.Credential, nil
}

// Bearer returns the token that a request presents, "" if none.
func Bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// Generate returns a new token and its digest in hex.
func Generate() (token, digest string) {
	token = "tg_" + rand.Text()
	sum := sha256.Sum256([]byte(token))
	return token, hex.EncodeToString(sum[:])
}
