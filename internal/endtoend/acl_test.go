package endtoend

import (
	"os"
	"strings"
	"testing"
)

// The ACL rules that the documentation gives are enough for each service, through
// restarts too: as these users the account is exact.
func TestDocumentedRedisUsersSuffice(t *testing.T) {
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(doc), "```acl\n")
	block, _, found := strings.Cut(block, "```")
	if !found {
		t.Fatal("docs/operations.md has no acl block")
	}
	var args []string
	passwords := map[string]string{}
	for rule := range strings.Lines(block) {
		fields := strings.Fields(rule) // user NAME on >PASSWORD …
		passwords[fields[1]] = strings.TrimPrefix(fields[3], ">")
		args = append(append(args, "--user"), fields[1:]...)
	}
	p := newPipeline(t, setup{redis: args})
	for _, s := range p.services() {
		s.env = append(s.env, "TALLYGATE_REDIS_USERNAME="+s.name, "TALLYGATE_REDIS_PASSWORD="+passwords[s.name])
		s.start()
	}
	r := p.enforcedLoad()
	r.until(1000)
	p.do("SCRIPT", "FLUSH")
	p.tracker.kill()
	p.indexer.kill()
	r.until(1000)
	p.tracker.start()
	p.indexer.start()
	r.until(500)
	report := r.finish()
	checkCertain(t, report)
	p.checkAccounts(report)
	denied, err := p.client.Do(t.Context(), "ACL", "LOG").Slice()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range denied {
		t.Errorf("denied: %v", d)
	}
}
