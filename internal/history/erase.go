package history

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

// eraseMemory is how long an erased token is recognised, by a digest, when more
// comes for it: longer than any counter lives in Redis and any record waits on
// the bus. After that the digest is forgotten too.
const eraseMemory = 7 * 24 * time.Hour

// Erase removes what identifies a token, on request: it is called by a random name
// from now on, which is returned; its owner, labels and other attributes are gone,
// and so is what its audit events said (their hashes stay, so the chain holds).
// Its usage stays, under that name, so all sums are what they were. The erasure
// itself becomes an audit event of the new name. The error wraps ErrUnknownToken
// when there is nothing of the token.
//
// Only the history is erased here: Redis forgets the token when its keys expire
// or are deleted.
func (s *Store) Erase(ctx context.Context, id token.ID, actor, reason string, now time.Time) (token.ID, error) {
	replacement := token.ID("erased-" + randomHex(8))
	err := s.engine.write(ctx, func(tx *sql.Tx) error {
		if err := s.engine.lockTokens(ctx, tx, true); err != nil {
			return err
		}
		if err := s.engine.lockAudit(ctx, tx); err != nil {
			return err
		}
		touched, err := erase(ctx, tx, id, replacement)
		if err != nil {
			return err
		}
		if touched == 0 {
			return fmt.Errorf("%w: the history holds nothing of it", ErrUnknownToken)
		}
		digest := sha256.Sum256([]byte(id))
		_, err = tx.ExecContext(ctx, `INSERT INTO erasures (digest, replacement, until_ms) VALUES ($1, $2, $3)
			ON CONFLICT (digest) DO UPDATE SET replacement = excluded.replacement, until_ms = excluded.until_ms`,
			digest[:], string(replacement), now.Add(eraseMemory).UnixMilli())
		if err != nil {
			return err
		}
		return appendEvents(ctx, tx, []usage.Event{{
			ID: randomHex(16), Token: replacement, At: now.UnixMilli(), Kind: "token.erased", Actor: actor, Reason: reason,
		}})
	})
	if err != nil {
		return "", fmt.Errorf("history: erase a token: %w", err)
	}
	return replacement, nil
}

// erase renames and removes; it returns how many rows there were to change.
func erase(ctx context.Context, tx *sql.Tx, id, replacement token.ID) (touched int64, err error) {
	for _, q := range []string{
		`UPDATE tokens SET token = $2 WHERE token = $1`,
		`UPDATE usage_minutes SET token = $2 WHERE token = $1`,
		`UPDATE usage_hours SET token = $2 WHERE token = $1`,
		`UPDATE usage_days SET token = $2 WHERE token = $1`,
		`UPDATE audit_events SET token = $2, reason = '', before = NULL, after = NULL, salt = ` + emptyBlob + ` WHERE token = $1`,
	} {
		result, err := tx.ExecContext(ctx, q, string(id), string(replacement))
		if err != nil {
			return 0, err
		}
		n, err := result.RowsAffected()
		if err != nil {
			return 0, err
		}
		touched += n
	}
	for _, q := range []string{
		`DELETE FROM token_attributes WHERE token = $1`,
		`DELETE FROM token_labels WHERE token = $1`,
	} {
		if _, err := tx.ExecContext(ctx, q, string(id)); err != nil {
			return 0, err
		}
	}
	return touched, nil
}

// emptyBlob is an empty binary value in both databases.
const emptyBlob = `substr(salt, 1, 0)`

func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// ForgetErasures forgets the digests of tokens that were erased long enough ago.
func (s *Store) ForgetErasures(ctx context.Context, now time.Time) error {
	err := s.engine.write(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM erasures WHERE until_ms < $1`, now.UnixMilli())
		return err
	})
	if err != nil {
		return fmt.Errorf("history: forget erasures: %w", err)
	}
	return nil
}
