package output

import (
	"bytes"

	"go.yaml.in/yaml/v3"
)

func writeYAML(b *bytes.Buffer, v View, separate bool) error {
	doc, err := v.envelope()
	if err != nil {
		return err
	}
	if separate {
		b.WriteString("---\n")
	}
	enc := yaml.NewEncoder(b)
	enc.SetIndent(2)
	if err := enc.Encode(yamlNode(doc)); err != nil {
		return err
	}
	return enc.Close()
}

// yamlNode gives every scalar its tag, so that the encoder quotes a string that
// YAML would read as something else ("no", "1e3", "2026-11-29").
func yamlNode(n node) *yaml.Node {
	scalar := func(tag, value string) *yaml.Node {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}
	}
	switch n := n.(type) {
	case boolean:
		if n {
			return scalar("!!bool", "true")
		}
		return scalar("!!bool", "false")
	case number:
		if isInteger(string(n)) {
			return scalar("!!int", string(n))
		}
		return scalar("!!float", string(n))
	case text:
		return yamlText(string(n))
	case list:
		y := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		for _, e := range n {
			y.Content = append(y.Content, yamlNode(e))
		}
		if len(n) == 0 {
			y.Style = yaml.FlowStyle
		}
		return y
	case object:
		y := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		for _, m := range n {
			y.Content = append(y.Content, yamlText(m.key), yamlNode(m.val))
		}
		if len(n) == 0 {
			y.Style = yaml.FlowStyle
		}
		return y
	default:
		return scalar("!!null", "null")
	}
}

// yamlText double-quotes what a plain or block scalar would not bring back
// byte for byte: line breaks of any kind, and controls.
func yamlText(s string) *yaml.Node {
	y := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}
	if Escape(s) != s {
		y.Style = yaml.DoubleQuotedStyle
	}
	return y
}

func isInteger(s string) bool {
	for i, c := range s {
		if (c < '0' || c > '9') && (i > 0 || c != '-') {
			return false
		}
	}
	return s != ""
}
