package history

import (
	"context"
	"fmt"

	"github.com/tallygate/tallygate/internal/token"
	"github.com/tallygate/tallygate/internal/usage"
)

// Sum returns what all tokens' accounts add up to; Last is the latest.
func (s *Store) Sum(ctx context.Context) (usage.Totals, error) {
	var t usage.Totals
	err := s.db.QueryRowContext(ctx, `
		SELECT CAST(coalesce(sum(ops), 0) AS bigint), CAST(coalesce(sum(rejected), 0) AS bigint),
			CAST(coalesce(sum(refunded), 0) AS bigint), coalesce(max(last_use), 0)
		FROM tokens`).Scan(&t.Admitted, &t.Rejected, &t.Refunded, &t.Last)
	if err != nil {
		return t, fmt.Errorf("history: sum up the tokens: %w", err)
	}
	return t, nil
}

// EachSum calls f with what each token's rows add up to, in the order of their
// IDs: the account made anew, to be compared with the one that was kept. It reads
// every minute that is there, and the days of those that have been dropped.
func (s *Store) EachSum(ctx context.Context, f func(token.ID, usage.Totals) error) error {
	rows, err := s.db.QueryContext(ctx, `
		SELECT token, `+sums+` FROM (
			SELECT token, admitted, rejected, refunded, last_use FROM usage_minutes
			UNION ALL
			SELECT token, admitted, rejected, refunded, last_use FROM usage_days
			WHERE day < (SELECT minutes_from / 1440 FROM history_state)
		) r GROUP BY token ORDER BY token`)
	if err != nil {
		return fmt.Errorf("history: sum up the rows: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id token.ID
		var t usage.Totals
		if err := rows.Scan(&id, &t.Admitted, &t.Rejected, &t.Refunded, &t.Last); err != nil {
			return fmt.Errorf("history: sum up the rows: %w", err)
		}
		if err := f(id, t); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("history: sum up the rows: %w", err)
	}
	return nil
}
