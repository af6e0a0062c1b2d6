package schematest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Schemas are the schemas of all kinds, by kind.
type Schemas map[string]*jsonschema.Schema

// Load reads the schemas in dir, which is docs/json of the repository.
func Load(dir string) (Schemas, error) {
	const ext = ".schema.json"
	files, err := filepath.Glob(filepath.Join(dir, "*"+ext))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("no schemas in %s", dir)
	}
	if err != nil {
		return nil, err
	}
	out := make(Schemas)
	for _, f := range files {
		kind := strings.TrimSuffix(filepath.Base(f), ext)
		if out[kind], err = load(f); err != nil {
			return nil, fmt.Errorf("schema %s: %w", f, err)
		}
	}
	return out, nil
}

func load(file string) (*jsonschema.Schema, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	strict(doc)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource(file, doc); err != nil {
		return nil, err
	}
	return c.Compile(file)
}

// strict forbids keys that are not in a schema.
func strict(x any) {
	switch x := x.(type) {
	case map[string]any:
		for _, v := range x {
			strict(v)
		}
		_, isObject := x["properties"].(map[string]any)
		if _, open := x["additionalProperties"]; isObject && !open {
			x["additionalProperties"] = false
		}
	case []any:
		for _, v := range x {
			strict(v)
		}
	}
}

// Check returns what is wrong with a document, and its kind.
func (s Schemas) Check(doc []byte) (kind string, err error) {
	var head struct {
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(doc, &head); err != nil {
		return "", err
	}
	schema := s[head.Kind]
	if schema == nil {
		return head.Kind, fmt.Errorf("kind %q has no schema", head.Kind)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(doc))
	if err != nil {
		return head.Kind, err
	}
	return head.Kind, schema.Validate(value)
}
