"""Networks as they are published, from Transformers, small: a few blocks of a few dozen channels."""

from __future__ import annotations

import transformers as hf
from torch import nn

from .network import CLASSES, WORDS, Network, images, labelled_texts, texts, translations

WIDTH = 32
_BLOCKS = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 2 * WIDTH}


def _resnet() -> nn.Module:
    shape = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    return hf.ResNetForImageClassification(hf.ResNetConfig(num_channels=3, num_labels=CLASSES, **shape))


def _mobilenet() -> nn.Module:
    return hf.MobileNetV2ForImageClassification(
        hf.MobileNetV2Config(depth_multiplier=0.1, min_depth=4, depth_divisible_by=4, num_labels=CLASSES, image_size=16)
    )


def _convnext() -> nn.Module:
    shape = {"patch_size": 4, "hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}
    return hf.ConvNextForImageClassification(hf.ConvNextConfig(num_channels=3, num_labels=CLASSES, **shape))


def _vit() -> nn.Module:
    return hf.ViTForImageClassification(hf.ViTConfig(image_size=16, patch_size=4, num_labels=CLASSES, **_BLOCKS))


def _bert() -> nn.Module:
    return hf.BertForSequenceClassification(hf.BertConfig(vocab_size=WORDS, num_labels=CLASSES, **_BLOCKS))


def _masked_bert() -> nn.Module:
    return hf.BertForMaskedLM(hf.BertConfig(vocab_size=WORDS, **_BLOCKS))


def _gpt2() -> nn.Module:
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=WORDS, n_embd=WIDTH, n_layer=2, n_head=2, n_positions=64))


def _llama() -> nn.Module:
    return hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=WORDS, num_key_value_heads=1, **_BLOCKS))


def _tied_llama() -> nn.Module:
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(vocab_size=WORDS, num_key_value_heads=1, tie_word_embeddings=True, **_BLOCKS)
    )


def _t5() -> nn.Module:
    shape = {"d_model": WIDTH, "d_kv": 16, "d_ff": 2 * WIDTH, "num_layers": 1, "num_heads": 2}
    return hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=WORDS, decoder_start_token_id=0, **shape))


def _mixtral() -> nn.Module:
    return hf.MixtralForCausalLM(
        hf.MixtralConfig(
            vocab_size=WORDS, num_key_value_heads=1, num_local_experts=4, experts_implementation="eager", **_BLOCKS
        )
    )


def _lora() -> nn.Module:
    import peft

    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], lora_dropout=0.0)
    return peft.get_peft_model(_llama(), config)


RESNET = Network("ResNet", _resnet, images)
MOBILENET = Network("MobileNetV2", _mobilenet, images)
CONVNEXT = Network("ConvNeXt", _convnext, images, options={"spaces": {"*.stages.1.*.pwconv?": "deeper"}})
VIT = Network("ViT", _vit, images)
BERT = Network("BERT, classifying", _bert, labelled_texts)
MASKED_BERT = Network("BERT, masked words", _masked_bert, texts)
GPT2 = Network("GPT-2", _gpt2, texts)
LLAMA = Network("Llama", _llama, texts)
TIED_LLAMA = Network("Llama, tied", _tied_llama, texts)
_TARGET = (
    "decoder.embed_tokens",
    "decoder.*.SelfAttention.[qkvo]",
    "decoder.*.EncDecAttention.[qo]",
    "decoder.*.w[io]",
)
T5 = Network("T5", _t5, translations, options={"spaces": dict.fromkeys((*_TARGET, "lm_head"), "target")})
MIXTRAL = Network("Mixtral", _mixtral, texts, options={"spaces": {"*.mlp.gate.*": "token"}, "routed": ["*.experts.*"]})
LORA = Network("Llama with LoRA", _lora, texts)
