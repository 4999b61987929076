package history

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"

	"github.com/tallygate/tallygate/internal/usage"
)

// link is an event's place in the hash chain.
//
// The chain runs over a hash of the content and not over the content, so that
// what an event says about a person can be erased and the chain still holds. The
// salt goes with the content: without it nobody can guess the content back.
type link struct {
	seq     int64
	salt    []byte
	content []byte
	chain   []byte
}

// next appends e to a chain that ends with l.
func (l link) next(e usage.Event) link {
	n := link{seq: l.seq + 1, salt: make([]byte, 16)}
	_, _ = rand.Read(n.salt) // never fails
	n.content = contentHash(n.salt, e)
	n.chain = chainHash(l.chain, n.seq, e, n.content)
	return n
}

func contentHash(salt []byte, e usage.Event) []byte {
	return digest(salt, []byte(e.Token), []byte(e.Actor), []byte(e.Reason), present(e.Before), present(e.After))
}

func chainHash(previous []byte, seq int64, e usage.Event, content []byte) []byte {
	return digest(previous, number(seq), []byte(e.ID), number(e.At), []byte(e.Kind), content)
}

// present tells an absent JSON value from every one that is there.
func present(v json.RawMessage) []byte {
	if v == nil {
		return nil
	}
	return append([]byte{'='}, v...)
}

func number(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// digest is SHA-256 over parts, each led by its length, so that no two lists of
// parts give the same input.
func digest(parts ...[]byte) []byte {
	h := sha256.New()
	for _, p := range parts {
		h.Write(number(int64(len(p))))
		h.Write(p)
	}
	return h.Sum(nil)
}
